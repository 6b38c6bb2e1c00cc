"""Markdown, CSV and JSON: well formed, linked to the run folders, and safe whatever a name contains."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from pathlib import Path

import pytest

from cos2p.studies.folder import to_json, write_report
from cos2p.studies.grid import Row, make_grid
from cos2p.studies.report import Report, code, runs_csv, to_csv, to_markdown
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
    write_report(report, tmp_path)
    study = json.loads((tmp_path / "study.json").read_text(encoding="utf-8"))
    assert study["kind"] == "compare"
    assert study["seeds"] == [0, 1]
    assert [cell["state"] for cell in study["cells"]] == ["done", "done", "done", "done", "done", "failed"]
    assert study["cells"][1]["result"]["top1"] == 0.7
    assert [row["cells"]["1"] for row in study["rows"]] == ["hostile-s1", "good-s1", "half-s1"]
    assert [table["name"] for table in study["tables"]] == ["results", "differences"]
    files = {"study.json", "table.md", "results.csv", "differences.csv", "runs.csv"}
    assert files <= {file.name for file in tmp_path.iterdir()}
