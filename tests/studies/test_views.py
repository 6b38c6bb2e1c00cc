"""How far a study is, in numbers and in words, with a clock that the test winds."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cos2p.studies.grid import Cell, CellOutcome, RunnableGrid
from cos2p.studies.progress import Status, StudyProgress
from cos2p.studies.views import JsonView, LiveView, PlainView, outcome_text, showing
from tests.studies.fakes import figures, tiny_grid
from tests.terminal.fake_run import Clock


@pytest.fixture
def grid(tmp_path: Path) -> RunnableGrid:
    return tiny_grid(tmp_path, rows=("slow", "quick"), seeds=(0, 1))


def done(cell: Cell, seconds: float) -> CellOutcome:
    return CellOutcome(cell.name, figures(0.5), seconds=seconds)


def test_the_time_left_follows_the_pace_of_what_was_done_here(grid: RunnableGrid) -> None:
    clock = Clock()
    progress = StudyProgress(jobs=1, clock=clock)
    kept = CellOutcome(grid.cells[0].name, figures(wall_seconds=40.0), kept=True)
    progress.begin(grid.cells, {kept.cell: kept}, later=0)
    assert progress.count_text() == "1/4 cells, 1 from before"
    first, second, third = grid.cells[1:]
    progress.started(first)
    assert progress.remaining() is None
    clock.now += 10
    progress.moved(first, Status(0.5, "half way"))
    clock.now += 10
    progress.ended(first, done(first, 20.0))
    assert progress.remaining() == pytest.approx(40.0)  # two of three cells, ten seconds for each half
    assert progress.remaining_text() == "about 40 s left"
    progress.ended(second, CellOutcome(second.name, failure="nan", exit_code=8, seconds=1.0))
    progress.ended(third, done(third, 20.0))
    assert progress.count_text() == "4/4 cells, 1 from before, 1 failed"
    assert progress.remaining_text() == "done"


def lines(view: PlainView) -> list[str]:
    assert isinstance(view.console.file, io.StringIO)
    return view.console.file.getvalue().splitlines()


def test_plain_lines(grid: RunnableGrid) -> None:
    clock = Clock()
    view = PlainView(Console(file=io.StringIO(), width=120), 2, clock=clock)
    view.begin(grid.cells, {}, 0)
    for cell in grid.cells[:2]:
        view.started(cell)
    view.tick()
    view.moved(grid.cells[0], Status(0.5, "updates 2/4"))
    clock.now += 61
    view.tick()
    view.tick()
    view.ended(grid.cells[0], done(grid.cells[0], 61.0))
    view.ended(grid.cells[1], CellOutcome(grid.cells[1].name, failure="the loss\x1b[31m became nan", exit_code=8))
    assert lines(view) == [
        "4 cells, 2 at once",
        "slow-s0: updates 2/4 · estimating the time",
        "quick-s0: starting · estimating the time",
        "1/4 slow-s0: server 50.0 %, clients 50.0 %, 1 min 1 s · estimating the time",
        "2/4 quick-s0: failed: the loss?[31m became nan · estimating the time",
    ]


def test_a_trial_is_told_by_what_it_is_judged_by(grid: RunnableGrid) -> None:
    cell = grid.cells[0]
    recipe = cell.recipe.model_copy(update={"data": cell.recipe.data.model_copy(update={"test_samples": 1})})
    outcome = CellOutcome(cell.name, result=figures(0.0, client_top1=0.5, validation_top1=0.61), seconds=61.0)
    assert outcome_text(replace(cell, recipe=recipe), outcome) == (
        "server 61.0 % on validation data, clients 50.0 %, 1 min 1 s"
    )
    assert outcome_text(cell, outcome) == "server 0.0 %, clients 50.0 %, 1 min 1 s"


def test_the_live_view_draws_running_cells_and_prints_failures(grid: RunnableGrid) -> None:
    console = Console(file=io.StringIO(), width=120)
    view = LiveView(console, "compare tiny", 2)
    view.begin(grid.cells, {}, 0)
    view.started(grid.cells[0])
    view.moved(grid.cells[0], Status(0.5, "updates 2/4 · server –"))
    console.print(view.draw())
    view.ended(grid.cells[0], CellOutcome("slow-s0", failure="nan", exit_code=8))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "compare tiny" in text
    assert "0/4 cells" in text
    assert "slow-s0" in text
    assert "updates 2/4 · server –" in text
    assert text.endswith("slow-s0: failed: nan\n")


def test_json_lines(grid: RunnableGrid) -> None:
    said: list[Any] = []
    view = JsonView(said.append)
    view.begin(grid.cells, {}, 0)
    view.started(grid.cells[0])
    view.ended(grid.cells[0], done(grid.cells[0], 2.0))
    (entry,) = said
    assert (entry["kind"], entry["cell"], entry["ok"], entry["done"], entry["total"]) == ("cell", "slow-s0", True, 1, 4)


def test_a_pipe_gets_plain_lines_and_a_terminal_a_live_view() -> None:
    with showing(Console(file=io.StringIO()), "t", 1) as view:
        assert isinstance(view, PlainView)
    with showing(Console(file=io.StringIO(), force_terminal=True), "t", 1) as view:
        assert isinstance(view, LiveView)
