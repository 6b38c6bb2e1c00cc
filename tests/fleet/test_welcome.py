"""Clients that were not known beforehand, and rates that change: every method takes it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cos2p.memory.planning import lowered
from cos2p.methods import build_method, make_contract, methods, run_task
from cos2p.methods.base import Member, RunContext
from cos2p.runtime.run_setup import RunSetup, build_run_setup, first_weights
from cos2p.server.protocol import ClientJoined, Send, TaskFailed
from cos2p.server.server import Server
from tests.fleet.lab import small_recipe
from tests.runtime.played import Played


@pytest.fixture(scope="module")
def run_setup() -> RunSetup:
    return build_run_setup(small_recipe(2, fleet__enforce_memory=False))


def server(run_setup: RunSetup, method: str, member: Member) -> Server:
    recipe = small_recipe(2, method={"name": method})
    context = RunContext(run_setup.config, {member.name: member}, recipe.training, recipe.schedule, recipe.seed, False)
    return Played(context, build_method(recipe.method, context), first_weights(recipe, run_setup.config))


def sent(effects: list[object]) -> list[Send]:
    return [effect for effect in effects if isinstance(effect, Send)]


@pytest.mark.parametrize("method", sorted(methods()))
def test_a_method_takes_members_as_they_come(run_setup: RunSetup, method: str) -> None:
    first, second = (replace(member, rate=0.5) for member in run_setup.context.members.values())
    made = server(run_setup, method, first)
    (task,) = sent(made.handle(ClientJoined(first.name)))
    update, _ = run_task(run_setup.config, made.orders.task(task.order), run_setup.shards[first.name], {})
    made.welcome(second)  # while the first is at work
    assert sent(made.handle(ClientJoined(second.name)))
    effects = made.receive(first.name, update)
    assert not [e for e in effects if getattr(e, "kind", "") in ("refused", "dropped")], effects
    assert made.coordinator.merged == 1


ONE_SIZE = ("fedncm", "probe")
"""Methods on a frozen model whose task has nothing that could be left out."""


@pytest.mark.parametrize("method", sorted(methods()))
def test_after_a_task_ran_out_of_memory_the_next_is_smaller(run_setup: RunSetup, method: str) -> None:
    member = replace(next(iter(run_setup.context.members.values())), rate=0.75)
    made = server(run_setup, method, member)
    (task,) = sent(made.handle(ClientJoined(member.name)))
    before = size(made, task, run_setup, member)
    made.welcome(lowered(made.method, member, before))
    (task,) = sent(made.handle(TaskFailed(member.name, task.order.task, "out of memory")))
    after = size(made, task, run_setup, member)
    if type(made.method).over_budget or method in ONE_SIZE:
        assert after <= before
    else:
        assert after < before
    update, _ = run_task(run_setup.config, made.orders.task(task.order), run_setup.shards[member.name], {})
    made.receive(member.name, update)
    assert made.coordinator.merged == 1


def size(made: Server, task: Send, run_setup: RunSetup, member: Member) -> int:
    """Bytes the task's trainer would need."""
    return make_contract(run_setup.config, task.order).memory(member.samples).total
