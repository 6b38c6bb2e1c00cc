"""`compare --target`: what was spent until an accuracy, by hand, by brute force, and of a real study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from cos2p.cli.app import app
from cos2p.errors import ConfigError
from cos2p.studies.compare import comparison
from cos2p.studies.folder import write_report
from cos2p.studies.grid import Cell
from cos2p.studies.record import read_record, write_record
from cos2p.studies.report import StudyPlan, run_study
from cos2p.studies.target import Curve, Point, Spent, Target, parse_target, read_curve, spent_until
from tests.studies.fakes import TINY, FakeExecute, figures, tiny_base
from tests.studies.test_record import Writing

FIRST_TASK = {"download": 9.0, "training": 2.0, "prefix": 1.0}
SECOND_TASK = {"masks": 4.0, "training": 5.0, "upload": 9.0}
EVENTS: list[dict[str, Any]] = [
    {"kind": "dispatched", "t": 0.0, "client": "a", "task": "a#0", "bytes": 100, "seconds": FIRST_TASK},
    {"kind": "dispatched", "t": 0.0, "client": "b", "task": "b#0", "bytes": 10, "seconds": SECOND_TASK},
    {"kind": "arrived", "t": 12.0, "client": "a", "task": "a#0", "bytes": 7},
    {"kind": "aggregated", "t": 12.0, "version": 1, "updates": 1},
    {"kind": "dispatched", "t": 12.0, "client": "a", "task": "a#1", "bytes": 100, "seconds": {"training": 2.0}},
    {"kind": "arrived", "t": 18.0, "client": "b", "task": "b#0", "bytes": 3},
    {"kind": "aggregated", "t": 18.0, "version": 2, "updates": 1},
    {"kind": "evaluated", "t": 20.0, "version": 1, "test": {"1": {"top1": 0.9}, "2": {"top1": 0.3}}},
    {"kind": "evaluated", "t": 21.0, "version": 1, "validation": {"2": {"top1": 0.9}}},
    {"kind": "finished", "t": 21.0, "version": 2, "reason": "max_updates", "test": {"2": {"top1": 0.5}}},
]  # fmt: skip
MISSING: dict[str, dict[str, Any]] = {
    "dispatched": {"version": 0, "cycle": 0, "window": [0, 1], "exits": [1], "masks": False, "lr": 0.1},
    "aggregated": {"round": 0, "clients": [], "n_star": 1, "heads": [], "units": []},
}


def write_log(run: Path, events: list[dict[str, Any]] = EVENTS) -> None:
    run.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({**MISSING.get(event["kind"], {}), **event}) + "\n" for event in events)
    (run / "events.jsonl").write_text("".join(lines), encoding="utf-8")


def test_a_score_is_put_where_its_version_was_made(tmp_path: Path) -> None:
    write_log(tmp_path)
    assert read_curve(tmp_path) == [
        Point(Spent(1, 12.0, 7, 110, 3.0), 0.3),  # told at second 20, when more had been sent
        Point(Spent(2, 18.0, 10, 210, 12.0), 0.5),
    ]


def test_a_real_fleets_log_has_no_processor_time(tmp_path: Path) -> None:
    write_log(tmp_path, [{k: v for k, v in event.items() if k != "seconds"} for event in EVENTS])
    assert [point.spent.processor_seconds for point in read_curve(tmp_path)] == [None, None]
    assert [point.spent.bytes_up for point in read_curve(tmp_path)] == [7, 10]


@given(st.lists(st.floats(0, 1), max_size=8), st.floats(0, 1))
def test_the_first_that_reaches_it(scores: list[float], target: float) -> None:
    curve = [Point(Spent(updates=n), top1) for n, top1 in enumerate(scores)]
    reaching = [n for n, top1 in enumerate(scores) if top1 >= target]
    found = spent_until(curve, target)
    assert (None if found is None else found.updates) == (min(reaching) if reaching else None)


@pytest.mark.parametrize("text", ["", "0", "1.5", "-0.5", "nan", "0.9*", "x*fedavg", "2*fedavg", "*fedavg"])
def test_a_target_that_cannot_be(text: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot read --target .*0\.9\*fedavg"):
        parse_target(text)


def curve_of(cell: str) -> Curve:
    """fedavg is quick; cos2p gets to 0.6 with seed 0 alone."""
    last = {"fedavg-s0": 0.8, "fedavg-s1": 0.9, "cos2p-s0": 0.6, "cos2p-s1": 0.5}[cell]
    return [Point(Spent(4 * n, 60.0 * n, 10**6 * n, 2 * 10**6 * n, 30.0 * n), last * n / 4) for n in range(1, 5)]


def by_curve(cell: Cell) -> dict[str, Any]:
    return figures(curve_of(cell.name)[-1].top1)


def asked(folder: Path, *targets: str) -> StudyPlan:
    plan = StudyPlan(tiny_base(folder), (0, 1), "cos2p compare")
    return comparison(plan, ("fedavg", "cos2p"), targets=list(map(parse_target, targets)), read_curve=curve_of)


def test_a_table_for_each_target(tmp_path: Path) -> None:
    plan = asked(tmp_path, "0.6", "cos2p", "0.5*fedavg")
    report = run_study(plan, FakeExecute(by_curve), lambda report: None)
    fixed, own, share = (table for table in report.tables if table.name.startswith("target-"))
    assert "60.0 % (the accuracy asked for)" in fixed.title
    assert "55.0 % (what Co-S²P ends with)" in own.title
    assert "42.5 % (50 % of what FedAvg (full) ends with)" in share.title
    assert fixed.line("cos2p").figures["reached"].by_seed == {0: 1.0, 1: 0.0}
    assert fixed.line("cos2p").figures["updates"].by_seed == {0: 16.0}
    assert fixed.line("fedavg").figures["virtual_seconds"].by_seed == {0: 180.0, 1: 180.0}
    assert share.line("cos2p").figures["bytes_down"].by_seed == {0: 6e6, 1: 8e6}
    assert share.line("fedavg").figures["processor_seconds"].by_seed == {0: 90.0, 1: 60.0}
    assert fixed.line("fedavg").marks == "*"
    assert not any(
        figure.best for table in (fixed, own, share) for line in table.lines for figure in line.figures.values()
    )


def test_a_target_nobody_reaches(tmp_path: Path) -> None:
    report = run_study(asked(tmp_path, "0.99"), FakeExecute(by_curve), lambda report: None)
    assert [column.key for column in report.tables[-1].columns] == ["reached"]


def test_before_its_method_has_run_there_is_no_table(tmp_path: Path) -> None:
    written: list[int] = []
    plan = asked(tmp_path, "cos2p")
    run_study(plan, FakeExecute(by_curve), lambda so_far: written.append(len(so_far.tables)))
    assert written == [2, 3, 3, 3]


def test_a_target_by_a_method_that_is_not_compared(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run of this study is of the method 'fedrolex'"):
        asked(tmp_path, "0.9*fedrolex")
    with pytest.raises(ConfigError, match="did you mean 'fedavg'"):
        asked(tmp_path, "fedavgg")


def test_the_record_keeps_the_table_and_the_curves(tmp_path: Path) -> None:
    folder, record = tmp_path / "study", tmp_path / "record"
    report = run_study(asked(tmp_path, "0.6"), Writing(folder), lambda report: None)
    write_report(report, folder)
    write_log(folder / "cells/cos2p-s0")
    write_record(folder, record)
    assert [table.to_dict() for table in read_record(record).tables] == [table.to_dict() for table in report.tables]
    runs = {line["name"]: line for line in map(json.loads, (record / "runs.jsonl").read_text().splitlines()[1:])}
    assert runs["cos2p-s0"]["curve"][1] == {
        "updates": 2,
        "virtual_seconds": 18.0,
        "bytes_up": 10,
        "bytes_down": 210,
        "processor_seconds": 12.0,
        "top1": 0.5,
    }
    assert runs["fedavg-s0"]["curve"] == []


def test_a_real_study_ends_with_what_its_runs_spent(tmp_path: Path) -> None:
    """With a single evaluation, at the end, that is the whole cost."""
    recipe, out = tmp_path / "tiny.toml", tmp_path / "study"
    recipe.write_text(TINY, encoding="utf-8")
    options = ["--methods", "fedavg,cos2p", "--seeds", "0", "--target", "0.01", "--keep", "figures", "-q"]
    once = ["--set", "schedule.evaluate_every=1000"]
    result = CliRunner().invoke(app, ["compare", str(recipe), *options, *once, "--out", str(out)])
    assert result.exit_code == 0, result.stderr
    table = next(t for t in json.loads((out / "study.json").read_text())["tables"] if t["name"] == "target-1")
    for row in table["rows"]:
        run = out / row["runs"]["0"]
        figures_of_run = json.loads((run / "result.json").read_text())
        (point,) = read_curve(run)
        assert (point.top1, point.spent.updates) == (figures_of_run["top1"], 4)
        assert point.spent.bytes_up == figures_of_run["bytes_up"]
        assert point.spent.virtual_seconds == pytest.approx(figures_of_run["virtual_seconds"])
        assert (point.spent.processor_seconds or 0) > 0
    assert "--target 0.01" in (out / "table.md").read_text()
    assert parse_target("0.01") == Target(0.01)
