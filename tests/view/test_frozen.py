from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cos2p.errors import RunError
from cos2p.view.frozen import assemble, content_policy, page_file, page_script, page_style, write_report
from tests.view.diary import Diary, two_rounds


class Page(HTMLParser):
    """Scripts, and every address the page names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.addresses: list[str] = []
        self.metas: list[dict[str, str | None]] = []
        self.tags: list[str] = []
        self._in_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action", "srcset")]
        if tag == "meta":
            self.metas.append(dict(attrs))
        if tag == "script":
            self._in_script = True
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_script = self._in_script and tag != "script"

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data


def test_one_file_with_everything_in_it(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    size = write_report([two_rounds().write(tmp_path / "run")], out)
    text = out.read_text(encoding="utf-8")
    assert size == len(text.encode())
    page = Page(text)
    data, script = page.scripts
    view = json.loads(data)
    assert (view["live"], view["runs"][0]["header"]["updates"]) == (False, 3)
    assert script == page_script()
    assert all(address.startswith(("#", "data:")) for address in page.addresses)
    assert "<!--STYLE-->" not in text
    assert "<!--VIEW-->" not in text


def test_the_policy_forbids_the_network_and_other_scripts() -> None:
    page = Page(assemble("null"))
    (policy,) = [meta["content"] for meta in page.metas if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policy == content_policy(page_style(), page_script(), live=False)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert (rules["default-src"], rules["connect-src"]) == ("'none'", "'none'")
    assert re.fullmatch(r"'sha256-[A-Za-z0-9+/]{43}='", rules["script-src"])
    assert page.metas.index({"charset": "utf-8"}) + 1 == [m.get("http-equiv") is not None for m in page.metas].index(
        True
    )
    assert "connect-src 'self'" in content_policy("", "", live=True)


def test_the_pages_own_files_name_no_other_host() -> None:
    sources = "\n".join([page_file("index.html"), page_style(), page_script()])
    assert set(re.findall(r"https?://[^\s\"'`)]+", sources)) <= {"http://www.w3.org/2000/svg"}
    assert "</script" not in page_script().lower()
    assert "</style" not in page_style().lower()
    assert page_file("index.html").count("<!--VIEW-->") == 1


def test_hostile_names_stay_strings(tmp_path: Path) -> None:
    name = "</script><script>alert(1)</script><!--STYLE--><!--SCRIPT-->\u2028&amp;"
    diary = Diary().started(name).joined(0, name).add("refused", 1, client=name, task="", reason=name)
    out = tmp_path / "report.html"
    write_report([diary.write(tmp_path / "run")], out)
    page = Page(out.read_text(encoding="utf-8"))
    assert len(page.scripts) == 2
    assert json.loads(page.scripts[0])["runs"][0]["devices"][0]["name"] == name
    assert page.tags == Page(assemble("null")).tags


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    run = two_rounds().write(tmp_path / "run")
    with pytest.raises(RunError, match="is a folder; name a file"):
        write_report([run], tmp_path)
    with pytest.raises(RunError, match="there is no folder"):
        write_report([run], tmp_path / "nowhere" / "report.html")
