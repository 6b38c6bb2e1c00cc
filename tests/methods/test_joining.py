"""What a method's rules and merge need of the members is asked anew when one joins, exactly as after a restart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from cos2p.messages import Order
from cos2p.methods import RunContext, build_method, run_task
from cos2p.models.layout import init_weights
from cos2p.server.protocol import ClientJoined, Effect, Send
from cos2p.server.server import Server
from tests.methods.fleet import digits, digits_house
from tests.runtime.played import Played
from tests.tiny import same

EVERYBODY = digits_house(updates=6, mu=0.5, t_clk=0.0)
NAMES = list(EVERYBODY.members)


def server(context: RunContext, method: Mapping[str, Any]) -> Server:
    return Played(context, build_method(method, context), init_weights(context.config, 0))


def orders(effects: list[Effect]) -> list[Order]:
    return [effect.order for effect in effects if isinstance(effect, Send)]


def answer(made: Server, order: Order) -> list[Order]:
    update, _ = run_task(made.context.config, made.orders.task(order), digits().shards[order.client], {})
    return orders(made.receive(order.client, update.to_bytes()))


@pytest.mark.parametrize("method", ["ramfed", "fedbuff", "fedavg", "heterofl", "cos2p"])
def test_a_join_is_like_a_restart_with_the_newcomer(method: str) -> None:
    first = replace(EVERYBODY, members={NAMES[0]: EVERYBODY.members[NAMES[0]]})
    joined = server(first, {"name": method})
    (open_task,) = orders(joined.handle(ClientJoined(NAMES[0])))
    for name in NAMES[1:]:
        joined.welcome(EVERYBODY.members[name])
    restarted = server(EVERYBODY, {"name": method})
    restarted.load_state(*joined.state())
    assert vars(joined.aggregator.merge).get("clients") == vars(restarted.aggregator.merge).get("clients")
    assert joined.coordinator.rules == restarted.coordinator.rules
    for made in (joined, restarted):
        pending = [open_task, *(order for name in NAMES[1:] for order in orders(made.handle(ClientJoined(name))))]
        while pending and made.coordinator.merged < 5:
            pending += answer(made, pending.pop(0))
    assert joined.versions.current == restarted.versions.current > 0
    assert same(joined.weights, restarted.weights)


def test_ramfed_divides_by_all_who_are_here_and_fedbuff_waits_for_their_share() -> None:
    alone = replace(EVERYBODY, members={NAMES[0]: EVERYBODY.members[NAMES[0]]})
    ramfed, fedbuff = server(alone, {"name": "ramfed"}), server(alone, {"name": "fedbuff"})
    (task,) = orders(ramfed.handle(ClientJoined(NAMES[0])))
    start = ramfed.weights
    for made in (ramfed, fedbuff):
        for name in NAMES[1:]:
            made.welcome(EVERYBODY.members[name])
    assert fedbuff.coordinator.rules.trigger.count == 2  # ⌈0.5 · 3⌉
    update, _ = run_task(alone.config, ramfed.orders.task(task), digits().shards[NAMES[0]], {})
    ramfed.receive(NAMES[0], update.to_bytes())
    name = "embed.cls"
    assert (start[name] - update.delta[name] / 3 - ramfed.weights[name]).abs().max() < 1e-7


def test_what_was_added_before_a_join_is_not_lost() -> None:
    two = replace(EVERYBODY, members={name: EVERYBODY.members[name] for name in NAMES[:2]})
    made = server(two, {"name": "fedavg"})
    tasks = [order for name in NAMES[:2] for order in orders(made.handle(ClientJoined(name)))]
    made.aggregator.robust_filter.bound = None  # with it the first three wait for each other
    answer(made, tasks[0])
    before = made.aggregator.merge.state()["sum"]
    made.welcome(EVERYBODY.members[NAMES[2]])
    assert before
    assert same(before, made.aggregator.merge.state()["sum"])
