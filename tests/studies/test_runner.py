"""Running cells in processes of their own: kept, failed, killed, stopped. The cells are made up and quick."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from cos2p.errors import Interrupted, RunError
from cos2p.runtime.model_folder import recipe_toml
from cos2p.studies.folder import study_folder
from cos2p.studies.grid import Cell, CellOutcome, CellOutcomes, RunnableGrid
from cos2p.studies.progress import Status, StudyProgress
from cos2p.studies.runner import Runner, Work
from tests.studies import cell_work
from tests.studies.fakes import tiny_grid


class Watcher(StudyProgress):
    def __init__(self) -> None:
        super().__init__()
        self.statuses: list[Status] = []

    def moved(self, cell: Cell, status: Status) -> None:
        super().moved(cell, status)
        self.statuses.append(status)


def runner(folder: Path, work: Work, **options: object) -> Runner:
    return Runner(folder, Watcher(), work=work, **options)  # type: ignore[arg-type]


def starts(folder: Path, cell: str) -> int:
    file = folder / "cells" / cell / "starts"
    return len(file.read_text()) if file.exists() else 0


@pytest.fixture
def grid(tmp_path: Path) -> RunnableGrid:
    return tiny_grid(tmp_path, rows=("a",), seeds=(0, 1))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "study" / "cells").mkdir(parents=True)
    return tmp_path / "study"


def test_cells_run_once_and_are_kept(grid: RunnableGrid, folder: Path) -> None:
    seen: list[int] = []
    first = runner(folder, cell_work.succeed)
    outcomes = first(grid.cells, lambda so_far: seen.append(len(so_far)))
    assert {name: outcome.result and outcome.result["top1"] for name, outcome in outcomes.items()} == {
        "a-s0": 0.0,
        "a-s1": 0.1,
    }
    assert seen == [0, 1, 2]
    assert isinstance(first.view, Watcher)
    assert first.view.statuses[0].words == "half way"
    again = runner(folder, cell_work.succeed)(grid.cells)
    assert all(outcome.kept for outcome in again.values())
    assert (starts(folder, "a-s0"), starts(folder, "a-s1")) == (1, 1)
    assert not list((folder / "logs").iterdir()), "logs of cells that said nothing are not kept"


def test_of_runs_that_are_over_only_figures_are_kept_if_wanted(grid: RunnableGrid, folder: Path) -> None:
    first, second = (folder / "cells" / cell.name for cell in grid.cells)
    runner(folder, cell_work.leave_much)(grid.cells[:1])
    assert (first / "model" / "weights").exists()
    outcomes = runner(folder, cell_work.leave_much, figures_only=True)(grid.cells)
    kept = {".cos2p-run", "recipe.toml", "events.jsonl", "result.json"}
    assert {file.name for file in first.iterdir()} == kept, "of an earlier start, too"
    assert {file.name for file in second.iterdir()} == kept
    again = runner(folder, cell_work.leave_much, figures_only=True)(grid.cells)
    assert all(outcome.kept for outcome in again.values())
    assert {name: outcome.result for name, outcome in again.items()} == {n: o.result for n, o in outcomes.items()}


def test_two_jobs_run_at_the_same_time_with_one_worker_each(grid: RunnableGrid, folder: Path) -> None:
    outcomes = runner(folder, cell_work.together, jobs=2)(grid.cells)
    assert [outcome.result and outcome.result["workers"] for outcome in outcomes.values()] == [1, 1]


@pytest.mark.slow  # 15 s: several processes that fail, each in its way
def test_failures_are_recorded_and_the_others_go_on(tmp_path: Path, folder: Path) -> None:
    grid = tiny_grid(tmp_path, rows=("a",), seeds=(1, 2, 3, 4, 0))
    outcomes = runner(folder, cell_work.misbehave, jobs=2)(grid.cells)
    assert outcomes["a-s0"].ok
    assert outcomes["a-s1"].failure == "the loss became nan"
    assert "by signal 9" in outcomes["a-s2"].failure
    assert outcomes["a-s3"].failure == "a defect of cos2p: ZeroDivisionError: a defect"
    assert outcomes["a-s4"].failure == "the disk is full"
    assert [outcomes[f"a-s{seed}"].exit_code for seed in range(5)] == [0, 8, 7, 70, 7]
    assert "last words" in (folder / "logs" / "a-s2.log").read_text()
    assert "ZeroDivisionError" in json.loads((folder / "failures.json").read_text())["a-s3"]["traceback"]

    # A loss that is not finite comes again with the same recipe; what may be gone is tried again.
    again = runner(folder, cell_work.succeed, jobs=2)(grid.cells)
    assert again["a-s1"] == CellOutcome("a-s1", failure="the loss became nan", exit_code=8, kept=True)
    assert [again[f"a-s{seed}"].ok for seed in (0, 2, 3, 4)] == [True] * 4
    forced = runner(folder, cell_work.succeed, retry=True)(grid.cells)
    assert all(outcome.ok for outcome in forced.values())
    assert json.loads((folder / "failures.json").read_text()) == {}


def test_ctrl_c_lets_the_cells_save_and_can_be_resumed(grid: RunnableGrid, folder: Path) -> None:
    def stop_once_it_runs() -> None:
        while not (folder / "cells" / "a-s1" / "pid").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=stop_once_it_runs)
    thread.start()
    seen: list[CellOutcomes] = []
    with pytest.raises(Interrupted, match="stopped after 1 of 2 cells"):
        runner(folder, cell_work.linger)(grid.cells, lambda so_far: seen.append(dict(so_far)))
    thread.join()
    assert (folder / "cells" / "a-s1" / "checkpoint").exists()
    assert list(seen[-1]) == ["a-s0"]
    assert not (folder / "failures.json").exists()
    assert all(outcome.ok for outcome in runner(folder, cell_work.succeed)(grid.cells).values())
    assert starts(folder, "a-s0") == 1


def test_an_error_in_the_study_leaves_no_process_behind(grid: RunnableGrid, folder: Path) -> None:
    class Broken(Watcher):
        def tick(self) -> None:
            if (folder / "cells" / "a-s1" / "pid").exists():
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Runner(folder, Broken(), work=cell_work.linger)(grid.cells[1:])
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder / "cells" / "a-s1" / "pid").read_text()), 0)


def test_cells_of_another_recipe_are_refused_before_anything_runs(grid: RunnableGrid, folder: Path) -> None:
    run = folder / "cells" / "a-s1"
    run.mkdir()
    other = grid.cells[1].recipe.model_copy(update={"seed": 9})
    (run / "recipe.toml").write_text(recipe_toml(other), encoding="utf-8")
    with pytest.raises(RunError, match="seed differ"):
        runner(folder, cell_work.succeed)(grid.cells)
    assert starts(folder, "a-s0") == 0


def test_a_folder_is_for_one_study_of_one_kind_at_a_time(tmp_path: Path) -> None:
    study = tmp_path / "study"
    with (
        study_folder(study, "compare"),
        pytest.raises(RunError, match="another process"),
        study_folder(study, "compare"),
    ):
        pass
    with study_folder(study, "compare"):
        pass
    with pytest.raises(RunError, match="kind 'compare', not 'sweep'"), study_folder(study, "sweep"):
        pass
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(RunError, match="not a study's folder"), study_folder(tmp_path / "mine", "compare"):
        pass
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
