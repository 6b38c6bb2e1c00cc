"""The page in a real browser: Debian's chromium, driven by Playwright. Without them tests are skipped, and say why."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.view.browser.watched import FLAGS, Watched

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_browser() -> str:
    """A chromium on this machine, installed by apt-get if there is none and we may. Empty if there is no way."""
    named = os.environ.get("COS2P_CHROMIUM")
    found = named or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None and shutil.which("apt-get") and os.geteuid() == 0:
        print("no chromium on this machine: installing it by apt-get")
        for command in (["apt-get", "install", "-y", "chromium"], ["apt-get", "update"]):
            if subprocess.run(command, capture_output=True, timeout=600).returncode == 0 and shutil.which("chromium"):
                break
        else:
            subprocess.run(["apt-get", "install", "-y", "chromium"], capture_output=True, timeout=600)
        found = shutil.which("chromium")
    return found or ""


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    program = find_browser()
    if not program:
        pytest.skip("no chromium, and it could not be installed: apt-get install chromium, or set COS2P_CHROMIUM")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=program, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Watched]]:
    """Open a page: `visit(url, width=360, scheme="dark")`. At the end it must have been silent."""
    opened: list[Watched] = []

    def go(url: str, width: int = 1280, height: int = 900, scheme: str = "light", quiet: bool = True) -> Watched:
        opened.append(Watched(browser, url, width, height, scheme, quiet))
        return opened[-1]

    yield go
    for one in opened:
        one.close()


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots are kept: the folder named by COS2P_SCREENSHOTS, else a temporary one."""
    folder = Path(os.environ.get("COS2P_SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
