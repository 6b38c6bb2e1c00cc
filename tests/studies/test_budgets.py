"""What a method takes of a budget: the largest that fits, by the ledger of the tasks it would give out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cos2p.errors import BudgetError
from cos2p.memory.fit import needed_bytes
from cos2p.memory.task_plan import tasks_at
from cos2p.methods import build_method
from cos2p.methods.base import Call
from cos2p.methods.heterofl.cut import scaled_rate
from cos2p.recipe import Recipe
from cos2p.studies.budgets import RATES, Absent, Fit, RunSetups, _Tries
from tests.studies.fakes import tiny_base

SMALL, MIDDLE, LARGE = 2_900_000, 4_950_000, 100_000_000


def recipe(folder: Path, method: str, *changes: str) -> Recipe:
    return Recipe.load(tiny_base(folder).recipe, ["model.depth=4", *changes], method)


def fit(folder: Path, method: str, memory: int, *changes: str) -> Fit | Absent:
    return RunSetups().fit([recipe(folder, method, *changes)], memory)


@pytest.mark.parametrize("method", ["cos2p", "fedrolex"])
def test_a_method_that_follows_a_rate_gets_the_largest_that_fits(tmp_path: Path, method: str) -> None:
    run_setups, given = RunSetups(), recipe(tmp_path, method)
    found = run_setups.fit([given], MIDDLE)
    assert isinstance(found, Fit)
    tries = _Tries(given.method, *run_setups.of(given), MIDDLE)
    assert tries.needed(found.rate) == found.needed <= MIDDLE
    larger = [rate for rate in RATES if rate > found.rate]
    assert larger
    assert all(tries.needed(rate) > MIDDLE for rate in larger)
    everything = run_setups.fit([given], LARGE)
    assert isinstance(everything, Fit)
    assert everything.rate == 1.0


def test_a_method_that_looks_at_memory_chooses_for_itself(tmp_path: Path) -> None:
    words = [fit(tmp_path, "fedlora", memory) for memory in (SMALL, MIDDLE, LARGE)]
    assert [found.takes for found in words if isinstance(found, Fit)] == ["head alone", "rank 2", "rank 32"]
    groups = [fit(tmp_path, "fedepth", memory) for memory in (SMALL, 7_100_000, LARGE)]
    assert [found.takes for found in groups if isinstance(found, Fit)] == [
        "head alone",
        "1 of 4 blocks",
        "4 of 4 blocks",
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
    assert found.reason.startswith("its smallest task needs 1")
    head = fit(tmp_path, "fedlora", 1_000_000)
    assert isinstance(head, Absent)
    assert "even the head alone needs" in head.reason


@pytest.mark.parametrize("end", ["schedule.updates=40", "schedule.rounds=40"])
def test_of_a_growing_model_the_late_tasks_count(tmp_path: Path, end: str) -> None:
    """Behind frozen blocks a task needs more than at the bottom, where all of them are in the first half of a run."""
    growing = ("method.form=growing", "model.exits=shared", "model.depth=6", end)
    run_setups, given = RunSetups(), recipe(tmp_path, "cos2p", *growing)
    found = run_setups.fit([given], MIDDLE)
    assert isinstance(found, Fit)
    run_setup, weights = run_setups.of(given)
    members = {name: replace(member, rate=found.rate) for name, member in run_setup.context.members.items()}
    method = build_method(given.method, replace(run_setup.context, members=members))
    tops, largest = set(), 0
    for merged in range(41):
        method.merged = merged  # type: ignore[attr-defined]
        for member in members.values():
            task = method.assign(Call(member, merged, 0, 0, weights))
            tops.add(task.spec.top)
            largest = max(largest, needed_bytes(method, member, task))
    assert max(tops) == 6
    assert largest <= found.needed <= MIDDLE


def test_a_method_without_submodels_of_the_smallest_rate_takes_a_larger_one(tmp_path: Path) -> None:
    tiny = ("model.dim=8", "model.heads=2", "model.mlp=8")
    with pytest.raises(BudgetError, match="no scaled submodel"):
        scaled_rate(recipe(tmp_path, "heterofl", *tiny).model.config(image=8), RATES[-1])
    found = fit(tmp_path, "heterofl", LARGE, *tiny)
    assert isinstance(found, Fit)
    assert found.rate == 1.0
    none = fit(tmp_path, "heterofl", 1_000, *tiny)
    assert isinstance(none, Absent)
    assert none.reason.startswith("its smallest task needs")


def test_data_are_read_once_for_all_methods(tmp_path: Path) -> None:
    run_setups = RunSetups()
    first, second = (run_setups.of(recipe(tmp_path, method))[0] for method in ("fedlora", "fedavg"))
    assert first is second
    assert run_setups.of(recipe(tmp_path, "fedavg", "seed=1"))[0] is not first
