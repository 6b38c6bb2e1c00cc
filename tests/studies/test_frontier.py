"""The frontier: who is where, what is absent and why, equal updates and equal time, the picture, the record."""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cos2p.errors import ConfigError
from cos2p.studies.equal_time import LONGEST, Rounds, seconds_for, updates_in
from cos2p.studies.folder import write_report
from cos2p.studies.frontier import Absent, Fit, Places, find_places, frontier, parse_memories, run_twice
from cos2p.studies.grid import Cell
from cos2p.studies.record import read_record, write_record
from cos2p.studies.report import Report, StudyPlan, run_study, to_csv, to_markdown
from cos2p.studies.tuning import Search
from tests.studies.fakes import FakeExecute, figures, tiny_base
from tools.frontier_plot import plot

BUDGETS = (30_000_000, 60_000_000)


def made_up(recipes: Sequence[Any], memory: int) -> Fit | Absent:
    """FedAvg never fits, FedLoRA takes the same of both budgets, Co-S²P more of the larger."""
    name = recipes[0].method["name"]
    if name == "fedavg":
        return Absent("its smallest task needs 105 MB")
    if name == "fedlora":
        return Fit("rank 8", 20_000_000)
    return Fit(f"R {memory / 2.4e8:g}", memory)


def accuracy(cell: Cell) -> dict[str, Any]:
    """Co-S²P 60 % and 70 %, in 60 and 120 s; FedLoRA 65 % in 100 s. The second seed has 2 points more."""
    memory, more = cell.recipe.fleet.devices[0].memory, 0.02 * cell.seed
    if cell.recipe.method["name"] == "fedlora":
        return figures(0.65 + more, virtual_seconds=100.0)
    small = memory == 30_000_000
    return figures((0.6 if small else 0.7) + more, virtual_seconds=60.0 if small else 120.0)


def history(cell: str) -> Rounds:
    """Of all methods: a round of two updates in 25 s."""
    return [(25.0 * n, 2 * n) for n in range(1, 5)]


def plan(
    folder: Path, *methods: str, seeds: tuple[int, ...] = (0, 1), search: Search | None = None
) -> tuple[StudyPlan, Places]:
    base, names = tiny_base(folder), methods or ("fedavg", "fedlora", "cos2p")
    places = find_places(base, seeds, names, BUDGETS, find=made_up)
    return frontier(StudyPlan(base, seeds, "cos2p …"), names, BUDGETS, places, search), places


def report(folder: Path) -> tuple[Report, FakeExecute, Places]:
    asked, places = plan(folder)
    execute = FakeExecute(accuracy)
    return run_study(asked, execute, lambda so_far: None), execute, places


def means(found: Report, table: int) -> dict[str, list[float | None]]:
    shown = found.tables[table]
    return {
        line.key: [
            None if (mean := line.figures[column.key].mean) is None else round(mean, 6) for column in shown.columns
        ]
        for line in shown.lines
    }


def test_every_budget_sets_memory_and_rate_of_all_devices(tmp_path: Path) -> None:
    _, execute, places = report(tmp_path)
    assert [row.key for row in places.rows] == ["fedlora@30MB", "fedlora@60MB", "cos2p@30MB", "cos2p@60MB"]
    asked = {(c.row, d.memory, d.rate) for c in execute.cells for d in c.recipe.fleet.devices}
    assert asked == {
        ("fedlora@30MB", 30_000_000, "auto"),  # with more bytes it would do the same: one run for both
        ("cos2p@30MB", 30_000_000, "auto"),
        ("cos2p@60MB", 60_000_000, "auto"),
    }
    assert len(execute.cells) == 6


def test_at_equal_updates(tmp_path: Path) -> None:
    found, _, _ = report(tmp_path)
    assert means(found, 1) == {"fedavg": [None, None], "fedlora": [0.66, 0.66], "cos2p": [0.61, 0.71]}
    assert "FedAvg (full) is absent at 30.0 MB, 60.0 MB: its smallest task needs 105 MB." in found.notes
    assert not found.failures


def test_there_is_no_table_at_equal_time_unless_it_is_asked_for(tmp_path: Path) -> None:
    found, _, _ = report(tmp_path)
    assert [table.name for table in found.tables] == ["results", "by_budget"]


def test_methods_are_planned_for_the_time_of_the_first_one(tmp_path: Path) -> None:
    """A pass over the two devices takes 25 s of everybody; FedLoRA, named first, takes 100 s, Co-S²P 60 and 120 s."""

    def by_updates(cell: Cell) -> dict[str, Any]:
        found = accuracy(cell)
        updates = cell.recipe.schedule.updates or 0
        return found | {"top1": updates / 100, "virtual_seconds": found["virtual_seconds"] if updates == 4 else 101.0}

    asked, places = plan(tmp_path, "fedlora", "cos2p")
    execute = FakeExecute(by_updates)
    found = run_twice(asked, execute, lambda so_far: None, history)
    assert means(found, 1) == {"fedlora": [0.04, 0.04], "cos2p": [0.04, 0.04]}
    assert means(found, 2) == {"fedlora": [0.04, 0.04], "cos2p": [0.08, 0.08]}
    assert "100 s in 30 MB (FedLoRA); 100 s in 60 MB (FedLoRA)" in found.tables[2].notes[-1]
    assert [line.key for line in found.tables[3].lines] == ["cos2p@30MB, 8 updates", "cos2p@60MB, 8 updates"]
    assert {line.key for line in found.tables[0].lines} == {row.key for row in places.rows}
    assert sorted({(cell.recipe.schedule.updates, cell.row) for cell in execute.cells}) == [
        (4, "cos2p@30MB"),
        (4, "cos2p@60MB"),
        (4, "fedlora@30MB"),
        (8, "cos2p@30MB, 8 updates"),
        (8, "cos2p@60MB, 8 updates"),
    ]
    assert len({cell.name for cell in execute.cells}) == len(execute.cells)  # nothing runs twice


def test_who_cannot_train_in_that_time_stands_in_no_cell(tmp_path: Path) -> None:
    def pace(cell: str) -> Rounds:
        return [(200.0, 2), (400.0, 4)] if cell.startswith("fedlora") else [(30.0, 2), (60.0, 4)]

    asked, _ = plan(tmp_path, "cos2p", "fedlora")
    found = run_twice(asked, FakeExecute(accuracy), lambda so_far: None, pace)
    assert means(found, 2) == {"cos2p": [0.61, 0.71], "fedlora": [None, None]}
    assert len(found.tables) == 3


@given(
    rounds=st.lists(st.floats(0.1, 50.0), min_size=3, max_size=12),
    seconds=st.floats(0.0, 1000.0),
    final_statistics=st.booleans(),
)
def test_what_is_planned_ends_in_time_and_one_pass_more_would_not(
    rounds: list[float], seconds: float, final_statistics: bool
) -> None:
    step, timeline = 8, [(sum(rounds[: n + 1]), 8 * (n + 1)) for n in range(len(rounds))]
    planned = updates_in([timeline], seconds, step, final_statistics=final_statistics)
    least = 3 * step if final_statistics else step
    if planned is None:
        assert seconds_for(timeline, least, final_statistics=final_statistics) > seconds
        return
    assert planned >= least
    assert seconds_for(timeline, planned, final_statistics=final_statistics) <= seconds
    more = planned + step
    assert more > LONGEST * timeline[-1][1] or seconds_for(timeline, more, final_statistics=final_statistics) > seconds


def test_a_run_as_long_as_it_was_takes_as_long_as_it_did() -> None:
    timeline = [(1.0, 8), (5.0, 16), (9.0, 24), (10.0, 32)]
    for final_statistics in (False, True):
        assert seconds_for(timeline, 32, final_statistics=final_statistics) == 10.0
    assert seconds_for(timeline, 24, final_statistics=False) == 9.0
    assert seconds_for(timeline, 24, final_statistics=True) == 6.0  # two rounds, and a second to tell


def test_the_picture_shows_every_method_and_its_intervals(tmp_path: Path) -> None:
    found, _, _ = report(tmp_path)
    root = ET.fromstring(plot("tiny", next(table for table in found.tables if table.name == "by_budget")))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"FedAvg (full) (absent)", "FedLoRA", "Co-S²P", "30 MB", "60 MB"} <= set(texts)
    circles = [float(c.attrib["cy"]) for c in root.iter("{http://www.w3.org/2000/svg}circle")]
    assert circles[0] == circles[1]  # FedLoRA is level
    assert circles[2] > circles[3]  # Co-S²P rises, and y points down
    assert "FedLoRA: 30 MB 66.0" in root.attrib["aria-label"]


def test_its_record_gives_the_same_page(tmp_path: Path) -> None:
    found, execute, _ = report(tmp_path)
    study = tmp_path / "study"
    for cell in execute.cells:
        (study / "cells" / cell.name).mkdir(parents=True)
        (study / "cells" / cell.name / "recipe.toml").write_text("name = 'tiny'\n", encoding="utf-8")
    write_report(found, study)
    write_record(study, tmp_path / "record")
    again = read_record(tmp_path / "record")
    tables = [to_markdown(r, linked=False).split("## Methods")[1].split("## Every run")[0] for r in (found, again)]
    assert tables[0] == tables[1]
    rows = list(csv.DictReader(io.StringIO(to_csv(again.tables[1]))))
    assert [row["at_30000000"] for row in rows] == ["", "0.66", "0.61"]


def test_rates_are_searched_for_every_place(tmp_path: Path) -> None:
    asked, _ = plan(tmp_path, "cos2p", seeds=(0,), search=Search(lrs=(0.001, 0.002)))
    execute = FakeExecute(lambda cell: figures(cell.recipe.training.lr * 100))
    found = run_study(asked, execute, lambda so_far: None)
    assert [line.facts["lr"].split()[0] for line in found.tables[0].lines] == ["0.002", "0.002"]
    assert found.tables[0].lines[0].facts["takes"] == "R 0.125"
    assert found.tuning is not None


def test_budgets_are_read_and_wrong_ones_refused(tmp_path: Path) -> None:
    assert parse_memories("60MB, 30MB,30MB") == BUDGETS
    with pytest.raises(ConfigError, match="--memory ',' names no budget"):
        parse_memories(",")
    with pytest.raises(ConfigError, match=r"no method keeps any of these budgets; fedavg at 30\.0 MB: its smallest"):
        plan(tmp_path, "fedavg")
