"""Links lead somewhere: the site is built strictly, and loads nothing from the network."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import REPOSITORY


def build(folder: Path, more: str = "") -> subprocess.CompletedProcess[str]:
    """The site of this repository's pages in `folder`, with `more` at the end of the first one."""
    pytest.importorskip("zensical", reason="zensical is not installed: make setup")
    shutil.copytree(REPOSITORY / "docs", folder / "docs")
    shutil.copy(REPOSITORY / "mkdocs.yml", folder)
    with (folder / "docs" / "index.md").open("a", encoding="utf-8") as index:
        index.write(more)
    words = [sys.executable, "-m", "zensical", "build", "--strict"]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=300, cwd=folder)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


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
    done = build(tmp_path, "\n[page](tutorial/gone.md) and [anchor](tutorial/first-run.md#nowhere)\n")
    assert done.returncode != 0
    said = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    assert "tutorial/gone.md" in said
    assert "#nowhere" in said


def test_every_result_is_in_the_menu() -> None:
    listed = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (REPOSITORY / "docs").glob("*/*.md"):
        assert f": {page.relative_to(REPOSITORY / 'docs')}" in listed, page


ADVISORIES = [str(path.relative_to(REPOSITORY)) for path in sorted((REPOSITORY / "advisories").glob("*.md"))]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", *ADVISORIES])
def test_links_outside_the_site(page: str) -> None:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", text):
        assert (REPOSITORY / page).parent.joinpath(target).exists(), f"{page}: {target}"
