"""A page under watch: what it says to the console and whom it asks is written down."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from cos2p.view.document import Sources, to_json
from cos2p.view.frozen import assemble

SAMPLE = Path(__file__).resolve().parents[1] / "sample.json"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Watched:
    """`page` is Playwright's; `complaints` and `requests` are what happened behind it."""

    def __init__(self, browser: Any, url: str, width: int, height: int, scheme: str, quiet: bool) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.quiet = quiet
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda said: self.complaints.append(f"{said.type}: {said.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(url)
        self.page.wait_for_selector("html[data-complete]", state="attached", timeout=15_000)

    def ask(self, script: str, *values: Any) -> Any:
        return self.page.evaluate(script, *values)

    def until(self, script: str, seconds: float = 8.0) -> Any:
        """The script's value once it is true. Asked from outside: the page's policy forbids it to evaluate text."""
        end = time.monotonic() + seconds
        while not (value := self.ask(script)):
            assert time.monotonic() < end, f"{script} did not become true within {seconds} s"
            self.page.wait_for_timeout(50)
        return value

    def close(self) -> None:
        self.context.close()
        if self.quiet:
            assert self.complaints == []


def sample(studies: bool = False) -> dict[str, Any]:
    """A real small run as a document; with studies, if asked for."""
    view = dict(json.loads(SAMPLE.read_text(encoding="utf-8")))
    return view if studies else {**view, "runs": view["runs"][:1], "studies": []}


def page_of(view: dict[str, Any], folder: Path) -> str:
    """The address of a frozen page with this document."""
    file = folder / "report.html"
    file.write_text(assemble(to_json({**view, "version": ""})), encoding="utf-8")  # type: ignore[typeddict-item]
    return file.as_uri()


def page_of_run(run: Path, folder: Path) -> str:
    sources = Sources([run])
    sources.refresh()
    file = folder / "report.html"
    file.write_text(assemble(to_json(sources.document())), encoding="utf-8")
    return file.as_uri()
