"""Only some take part: as many tasks as the schedule says, to whom it says; and what nobody needs is forgotten."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from cos2p.models.layout import Weights
from cos2p.server.protocol import ClientLeft
from cos2p.server.server import Server
from cos2p.tracking.event_kinds import Aggregated
from tests.runtime.played import answer, join_all, sent, server
from tests.tiny import VIT, context, same

EIGHT = (0.25,) * 8


def test_a_synchronous_round_has_as_many_as_the_schedule_says() -> None:
    played = server(context(VIT, EIGHT, clients_per_round=3, rounds=4), method="fedavg")
    orders = sent(join_all(played))
    seen = set()
    while played.coordinator.finished is None:
        assert len({order.client for order in orders}) == 3
        seen |= {order.client for order in orders}
        effects = [effect for order in orders for effect in played.receive(order.client, answer(played, order.client))]
        (closed,) = [effect for effect in effects if isinstance(effect, Aggregated)]
        assert set(closed.clients) == {order.client for order in orders}
        assert closed.n_star == 3  # of those who took part
        orders = sent(effects)
    assert len(seen) > 3


def test_the_trigger_counts_those_who_take_part() -> None:
    """μ = 0.5 of four at work is two, though eight are here."""
    played = server(context(VIT, EIGHT, clients_per_round=0.5, mu=0.5, t_clk=0.0, redispatch="at-aggregation"))
    orders = sent(join_all(played))
    assert len(orders) == 4
    first = played.receive(orders[0].client, answer(played, orders[0].client))
    assert not any(isinstance(effect, Aggregated) for effect in first)
    second = played.receive(orders[1].client, answer(played, orders[1].client))
    assert any(isinstance(effect, Aggregated) for effect in second)


def test_a_restart_in_the_middle_gives_the_same_run() -> None:
    def play(restart_every: int) -> Weights:
        given = context(VIT, EIGHT, clients_per_round=2, rounds=5, mu=0.5, t_clk=0.0)
        played = server(given)
        join_all(played)
        step = 0
        while played.coordinator.finished is None:
            client = sorted(played.coordinator.in_flight())[0]
            played.receive(client, answer(played, client))
            step += 1
            if restart_every and step % restart_every == 0:
                values, groups = played.state()
                again: Server = server(given)
                again.load_state(json.loads(json.dumps(values)), groups)
                played = again
        return played.weights

    assert same(play(0), play(1))


def test_what_nobody_needs_any_more_is_forgotten() -> None:
    played = server(context(VIT, EIGHT, rounds=9, mu=0.01, t_clk=0.0))
    join_all(played)
    for name in ("pi-0", "pi-1", "pi-2"):
        played.receive(name, answer(played, name))
    in_flight = {ticket.version for ticket in played.coordinator.in_flight().values()}
    assert set(played.versions.held) == in_flight | {played.versions.current}
    assert set(played.orders) == {ticket.task for ticket in played.coordinator.in_flight().values()}
    played.handle(ClientLeft("pi-3"))  # its answer may still come
    assert any(order.client == "pi-3" for order in played.orders.values())


def test_half_a_device_more_is_refused_by_name() -> None:
    with pytest.raises(ValidationError, match=r"clients_per_round is 2\.5"):
        server(context(VIT, EIGHT, clients_per_round=2.5))
