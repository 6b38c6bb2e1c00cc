"""What a method takes of a budget: the largest that fits, by the ledger of the tasks it would give out."""

from __future__ import annotations

from pathlib import Path

import pytest

from cos2p.memory.planning import tasks_at
from cos2p.methods import build_method
from cos2p.recipe import Recipe
from cos2p.studies.frontier import Absent, Fit, RunSetups
from tests.studies.fakes import tiny_base

SMALL, MIDDLE, LARGE = 2_900_000, 4_950_000, 100_000_000


def recipe(folder: Path, method: str, *changes: str) -> Recipe:
    return Recipe.load(tiny_base(folder).recipe, ["model.depth=4", *changes], method)


def fit(folder: Path, method: str, memory: int, *changes: str) -> Fit | Absent:
    return RunSetups().fit([recipe(folder, method, *changes)], memory)


@pytest.mark.parametrize("method", ["cos2p", "fedrolex"])
def test_a_method_that_follows_a_rate_takes_more_of_more_bytes(tmp_path: Path, method: str) -> None:
    found = [fit(tmp_path, method, memory) for memory in (MIDDLE, LARGE)]
    assert all(isinstance(entry, Fit) for entry in found)
    assert [getattr(entry, "takes", "").split(",")[0] for entry in found] == ["a window", "everything"]


def test_a_method_that_looks_at_memory_chooses_for_itself(tmp_path: Path) -> None:
    words = [fit(tmp_path, "fedlora", memory) for memory in (SMALL, MIDDLE, LARGE)]
    assert [found.takes for found in words if isinstance(found, Fit)] == [
        "the head alone",
        "factors of rank 24",
        "factors of rank 32",
    ]
    groups = [fit(tmp_path, "fedepth", memory) for memory in (SMALL, 7_100_000, LARGE)]
    assert [found.takes for found in groups if isinstance(found, Fit)] == [
        "the head alone",
        "2 blocks at a time",
        "4 blocks at a time",
    ]


def test_tasks_that_tell_of_the_data_count_too_and_so_do_those_after_them(tmp_path: Path) -> None:
    plain, closed = (fit(tmp_path, "fedlora", LARGE, *more) for more in ((), ("method.start=means",)))
    assert isinstance(plain, Fit)
    assert isinstance(closed, Fit)
    assert (closed.takes, closed.needed) == (plain.takes, plain.needed)
    none = fit(tmp_path, "fedncm", SMALL)
    assert isinstance(none, Fit)
    assert none.takes == "no training"


def test_what_is_told_at_the_end_counts_too(tmp_path: Path) -> None:
    given = recipe(tmp_path, "cos2p", "method.exits.finish=discriminant")
    run_setup, weights = RunSetups().of(given)
    method, member = build_method(given.method, run_setup.context), next(iter(run_setup.context.members.values()))
    tasks = [
        (task.trainer.name, getattr(task.settings, "final", False)) for task in tasks_at(method, member, 0, weights)
    ]
    assert tasks == [("statistics", True), ("submodel", False)]


def test_what_cannot_be_kept_is_told_with_its_bytes(tmp_path: Path) -> None:
    found = fit(tmp_path, "fedavg", MIDDLE)
    assert isinstance(found, Absent)
    assert found.reason.startswith("its smallest task needs 9")
    head = fit(tmp_path, "fedlora", 1_000_000)
    assert isinstance(head, Absent)
    assert "even the head alone needs" in head.reason


def test_data_are_read_once_for_all_methods(tmp_path: Path) -> None:
    run_setups = RunSetups()
    first, second = (run_setups.of(recipe(tmp_path, method))[0] for method in ("fedlora", "fedavg"))
    assert first is second
    assert run_setups.of(recipe(tmp_path, "fedavg", "seed=1"))[0] is not first
