"""Markdown, CSV, HTML and JSON: well formed, linked to the run folders, and safe whatever a name contains."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cos2p.studies.folder import to_json, write_report
from cos2p.studies.grid import Row, make_grid
from cos2p.studies.html import to_html
from cos2p.studies.markdown import code, runs_csv, to_csv, to_markdown
from cos2p.studies.report import Report
from cos2p.studies.tables import differences_table, results_table
from tests.studies.fakes import figures, outcomes_of, tiny_base

HOSTILE = '<script>alert("1")</script>|`x`[y](http://z)\n**'


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """A row with a hostile name, a better one, and one of whose two runs the second failed."""
    rows = [
        Row("hostile", HOSTILE, ("training.weight_decay=0.1",), facts={"note": HOSTILE}),
        Row("good", "Good", ("training.weight_decay=0.2",)),
        Row("half", "Half", ("training.weight_decay=0.3",)),
    ]
    grid = make_grid(tiny_base(tmp_path), rows, (0, 1))
    answers = {(row.key, seed): figures(0.5 + 0.2 * (row.key == "good")) for row in rows for seed in (0, 1)}
    outcomes = outcomes_of(grid, answers | {("half", 1): HOSTILE})
    results = results_table("results", "Results", grid, outcomes)
    differences = differences_table("differences", "Differences", results, "good")
    return Report("compare", HOSTILE, "tiny", "cos2p compare `x`", 4, grid, outcomes, (results, differences))


class Page(HTMLParser):
    """Checks that tags nest, and collects them."""

    VOID = ("meta", "br", "link")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def test_html_is_well_formed_and_alone(report: Report) -> None:
    page = Page(to_html(report))
    assert not page.all("script")
    assert not page.all("img")
    assert not page.all("link")
    assert any(HOSTILE in text for text in page.texts), "the name is there, as text"
    columns = len(report.tables[0].columns)
    # Heading, fact, figures and runs of three rows; of the differences two; and five runs one by one.
    rows = page.all("tr")
    assert len(rows) == (1 + 3) + (1 + 2) + (1 + 5)
    assert len(page.all("strong")) >= columns // 2


def test_html_links_stay_inside_the_study(report: Report) -> None:
    page = Page(to_html(report))
    targets = {link["href"] or "" for link in page.all("a")}
    folders = {f"cells/{cell.name}/" for cell in report.grid.cells if report.outcomes[cell.name].ok}
    anchors = {f"#{attributes['id']}" for _, attributes in page.tags if "id" in attributes}
    assert folders <= targets
    assert targets <= folders | anchors
    # Every figure of every run is a link to its folder.
    assert sum(link["href"] == "cells/good-s1/" for link in page.all("a")) >= len(report.tables[0].columns)


def test_markdown_is_well_formed(report: Report) -> None:
    text = to_markdown(report)
    tables = [block for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) == 3
    for block in tables:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block
    assert "\n<script" not in text
    assert re.search(r"(?<!\\)<script", text) is None
    assert "[1](cells/good-s1/)" in text
    assert "**70.0 ± 0.0**" in text
    assert "1 failed" in text
    assert "Failed runs" in text


def test_code_spans_hold_backticks() -> None:
    assert code("a b") == "`a b`"
    assert code("a `b`") == "`` a `b` ``"


def test_csv_has_unrounded_figures(report: Report) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(report.tables[0]))))
    assert [row["row"] for row in rows] == ["hostile", "good", "half"]
    assert rows[0]["title"] == HOSTILE
    assert float(rows[1]["top1"]) == 0.7
    assert float(rows[1]["top1_half"]) == 0.0
    assert rows[2]["top1_half"] == ""
    assert rows[2]["seeds"] == "0"
    runs = list(csv.DictReader(io.StringIO(runs_csv(report))))
    assert [(run["row"], run["seed"]) for run in runs][:2] == [("hostile", "0"), ("hostile", "1")]
    assert runs[-1]["failure"] == HOSTILE
    assert runs[-1]["top1"] == ""
    assert runs[0]["folder"] == "cells/hostile-s0"


def test_json_takes_no_numbers_that_others_cannot_read() -> None:
    assert json.loads(to_json({"a": math.nan, "b": [math.inf, 1.5], 3: None})) == {
        "a": None,
        "b": [None, 1.5],
        "3": None,
    }


def test_the_folder(report: Report, tmp_path: Path) -> None:
    write_report(report, tmp_path, plots="<p>")
    study = json.loads((tmp_path / "study.json").read_text(encoding="utf-8"))
    assert study["kind"] == "compare"
    assert study["seeds"] == [0, 1]
    assert [cell["state"] for cell in study["cells"]] == ["done", "done", "done", "done", "done", "failed"]
    assert study["cells"][1]["result"]["top1"] == 0.7
    assert [row["cells"]["1"] for row in study["rows"]] == ["hostile-s1", "good-s1", "half-s1"]
    assert [table["name"] for table in study["tables"]] == ["results", "differences"]
    files = {"study.json", "table.md", "table.html", "results.csv", "differences.csv", "runs.csv", "plots.html"}
    assert files <= {file.name for file in tmp_path.iterdir()}
