"""Links lead somewhere: the site is built strictly, and loads nothing from the network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import REPOSITORY


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=300, env=environment)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = build(REPOSITORY / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_builds_strictly(site: Path) -> None:
    assert (site / "index.html").is_file()
    assert (site / "reference" / "cli.html").is_file()


def test_nothing_is_loaded_from_the_network(site: Path) -> None:
    loads = re.compile(r"<(?:script|img|iframe|source)[^>]*\ssrc=[\"']?(https?:)?//|<link[^>]*href=[\"']?https?://")
    for page in site.rglob("*.html"):
        found = [m.group(0) for m in loads.finditer(page.read_text(encoding="utf-8")) if "canonical" not in m.group(0)]
        assert found == [], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?https?://", style.read_text(encoding="utf-8")), style.name


def test_broken_links_are_found(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "docs", tmp_path / "docs")
    shutil.copytree(REPOSITORY / "tools", tmp_path / "tools")
    shutil.copy(REPOSITORY / "mkdocs.yml", tmp_path)
    with (tmp_path / "docs" / "index.md").open("a", encoding="utf-8") as index:
        index.write("\n[page](tutorial/gone.md) and [anchor](tutorial/first-run.md#nowhere)\n")
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode != 0
    assert "tutorial/gone.md" in done.stderr
    assert "#nowhere" in done.stderr


ADVISORIES = [str(path.relative_to(REPOSITORY)) for path in sorted((REPOSITORY / "advisories").glob("*.md"))]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", *ADVISORIES])
def test_links_outside_the_site(page: str) -> None:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", text):
        assert (REPOSITORY / page).parent.joinpath(target).exists(), f"{page}: {target}"
