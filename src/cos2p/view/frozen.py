"""The page as one file: markup, style, script and data in it, nothing fetched from anywhere."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from cos2p.errors import RunError
from cos2p.tracking.files import write_atomic
from cos2p.view.document import OnProgress, Sources, for_html, to_json

STYLES = ("style.css",)
SCRIPTS = (
    # tools
    "dom.js", "format.js", "color.js", "tip.js", "table.js", "panel.js", "linechart.js", "heatmap.js", "run_data.js",
    "crowd.js",
    # one file for each panel, the fleet's in five
    "header.js", "overview.js", "curves.js", "lane_drawing.js", "lane_controls.js", "lanes.js", "group_lanes.js",
    "fleet.js", "coverage.js", "rolling.js", "masks.js", "weights.js", "devices.js", "troubles.js", "compare_runs.js",
    "study_table.js", "study_parts.js", "studies.js",
    # the page
    "live.js", "main.js",
)  # fmt: skip
"""The page's files, in the order in which they are put into it."""

STYLE, VIEW, SCRIPT = "<!--STYLE-->", "<!--VIEW-->", "<!--SCRIPT-->"
CHARSET = '<meta charset="utf-8">'
"""Marks in index.html for what is put into it."""


def write_report(folders: Sequence[Path], out: Path, on_progress: OnProgress = lambda done, total, name: None) -> int:
    """Freeze the folders into the file `out`; returns its size in bytes."""
    if out.is_dir():
        raise RunError(f"{out} is a folder; name a file with -o, for instance {out / 'report.html'}")
    if not out.parent.is_dir():
        raise RunError(f"{out}: there is no folder {out.parent}; make it, or name another file with -o")
    sources = Sources(folders, page_folder=out.parent)
    sources.refresh(on_progress)
    page = assemble(to_json(sources.document())).encode()
    write_atomic(out, page)
    return len(page)


def assemble(document: str, live: bool = False) -> str:
    """The whole page around a document (JSON)."""
    style, script, markup = page_style(), page_script(), page_file("index.html")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{content_policy(style, script, live)}">'
    pieces = {
        CHARSET: f"{CHARSET}\n{policy}",  # it has to come before anything it is about
        STYLE: f"<style>{style}</style>",
        VIEW: f'<script type="application/json" id="view">{for_html(document)}</script>',
        SCRIPT: f"<script>{script}</script>",
    }
    # One pass over the markup: what is put in is never searched for marks again.
    return re.sub("|".join(map(re.escape, pieces)), lambda match: pieces[match[0]], markup)


def content_policy(style: str, script: str, live: bool) -> str:
    """Nothing from anywhere: only this very style and script run, and only a live page may ask, its own server."""
    connect = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; img-src data:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def page_file(name: str) -> str:
    return (files("cos2p.view") / "page" / name).read_text(encoding="utf-8")


def page_style() -> str:
    return _joined(STYLES)


def page_script() -> str:
    return _joined(SCRIPTS)


def _joined(names: Sequence[str]) -> str:
    """Line ends as a browser sees them: the policy has their digest."""
    text = "\n".join(page_file(name) for name in names)
    return "\n" + text.replace("\r\n", "\n").replace("\r", "\n")
