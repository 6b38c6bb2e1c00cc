"""Lying devices against a server whose honest ones all send about the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from cos2p.aggregation.robust import filter
from cos2p.aggregation.settings import PrivacySettings, RobustSettings
from cos2p.errors import ConfigError
from cos2p.messages import Order, Update
from cos2p.methods import build_method, make_contract
from cos2p.models.layout import Weights
from cos2p.seeding import torch_rng
from cos2p.server.protocol import ClientJoined
from cos2p.server.server import Server
from cos2p.server.update_reader import root_mean_square
from tests.runtime.played import Played, join_all, notes, restored, sent, snapshot, trained_spec
from tests.submodel.strategies import random_weights
from tests.tiny import VIT, context, same

Lie = Callable[[Weights], Weights]
MALICIOUS = "pi-4"


def flip(delta: Weights) -> Weights:
    return {name: -tensor for name, tensor in delta.items()}


def constant(delta: Weights) -> Weights:
    return {name: torch.full_like(tensor, 9.9) for name, tensor in delta.items()}


def noise(delta: Weights) -> Weights:
    return {n: 0.1 * torch.randn(t.shape, generator=torch_rng(1, "noise", n)) for n, t in delta.items()}


def fleet(method: str = "fedavg", **robust: Any) -> Server:
    house = replace(context(VIT, rates=(1.0,) * 5, rounds=50, max_update_rms=10.0), robust=RobustSettings(**robust))
    server = Played(house, build_method({"name": method}, house), random_weights(VIT, 0))
    join_all(server)
    return server


def honest(order: Order) -> Update:
    """All pull the same way, each with noise of its own."""
    spec = trained_spec(order)
    delta = {}
    for name, shape in make_contract(VIT, order).answer(spec).items():
        common = torch.randn(shape, generator=torch_rng(0, "common", name, order.version))
        own = torch.randn(shape, generator=torch_rng(0, "own", name, order.client, order.version))
        delta[name] = 0.01 * (common + own)
    return Update(order.client, order.task, order.version, spec, delta, 10)


def play(server: Server, lie: Lie, rounds: int = 1) -> list[Any]:
    """Rounds in which one device lies. Returns all effects."""
    reported = []
    for _ in range(rounds):
        for order in sorted(server.orders.values(), key=lambda order: order.client):
            update = honest(order)
            if order.client == MALICIOUS:
                update = replace(update, delta=lie(update.delta))
            reported += server.receive(order.client, update)
    return reported


def moved(server: Server, before: Weights) -> torch.Tensor:
    return torch.cat([(before[name] - tensor).flatten() for name, tensor in server.weights.items()])


METHODS = ("fedavg", "fedbuff", "ramfed", "heterofl", "fedavg-platon", "fedavg-adavit", "cos2p-sync")
"""One of every kind of merge."""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("lie", [flip, constant])
def test_a_liar_hardly_matters_where_it_is_judged(method: str, lie: Lie) -> None:
    """The model goes where it goes without a lie, by a cosine of 0.85 and about as far; with every merge."""
    straight, attacked = fleet(method, bound=0), fleet(method, bound=2, suspicion="weigh")
    before = dict(straight.weights)
    play(straight, lambda delta: delta)
    play(attacked, lie)
    a, b = moved(straight, before), moved(attacked, dict(before))
    assert float(torch.cosine_similarity(a, b, dim=0)) > 0.85
    assert float(b.norm()) < 1.5 * float(a.norm())


@pytest.mark.parametrize("rule", ["median", "trimmed", "geometric"])
@pytest.mark.parametrize("lie", [flip, constant, noise])
def test_a_majority_outvotes_a_liar(rule: str, lie: Lie) -> None:
    straight, attacked = fleet(bound=0), fleet(bound=0, combine=rule)
    before = dict(straight.weights)
    play(straight, lambda delta: delta)
    play(attacked, lie)
    a, b = moved(straight, before), moved(attacked, dict(before))
    assert float(torch.cosine_similarity(a, b, dim=0)) > 0.8
    assert float(b.norm()) < 2 * float(a.norm())


def far_back(delta: Weights) -> Weights:
    return {name: -15 * tensor for name, tensor in delta.items()}


@pytest.mark.parametrize("method", ["fedavg", "cos2p-sync", "fedasync"])
def test_by_default_one_that_undoes_what_it_learned_many_times_over_hardly_matters(method: str) -> None:
    straight, attacked = fleet(method), fleet(method)
    before = dict(straight.weights)
    play(straight, lambda delta: delta, rounds=3)
    play(attacked, far_back, rounds=3)
    a, b = moved(straight, before), moved(attacked, dict(before))
    assert float(torch.cosine_similarity(a, b, dim=0)) > 0.8
    assert float(b.norm()) < 1.5 * float(a.norm())


def test_where_a_third_is_left_out_nobody_more_is_opposed() -> None:
    """Of a few devices that are left some have to be on one side and some on the other."""
    server = fleet()
    server.aggregator.robust_filter.excluded = {"gone-1": "", "gone-2": ""}
    assert not notes(play(server, flip, rounds=8), "doubted")


def one_way(delta: Weights) -> Weights:
    """The same direction every time, another for each tensor, as long as an honest update; or a little off it."""
    found = {}
    for name, tensor in delta.items():
        same = torch.randn(tensor.shape, generator=torch_rng(3, "one way", name))
        found[name] = float(tensor.square().mean().sqrt()) * same + 0.2 * tensor
    return found


@pytest.mark.parametrize("method", ["fedavg", "cos2p-sync", "fedbuff"])
def test_by_default_one_that_always_sends_the_same_is_left_out(method: str) -> None:
    server = fleet(method)
    reported = play(server, one_way, rounds=8)
    assert {note["client"] for note in notes(reported, "doubted")} == {MALICIOUS}
    assert "nearly the same as its last ones" in notes(reported, "doubted")[0]["reason"]
    assert [note["client"] for note in notes(reported, "excluded")] == [MALICIOUS]


def test_the_largest_step_follows_the_model_and_the_task() -> None:
    """A fleet of one: nothing to compare with. Ten was 250 honest steps of the default method."""
    house = context(VIT, rates=(1.0,), rounds=5)
    server = Played(house, build_method({"name": "fedavg"}, house), random_weights(VIT, 0))
    join_all(server)
    (order,) = server.orders.values()
    contract = server.orders.contract(order)
    size = root_mean_square(server.weights)
    assert server.aggregator.largest_step(order, contract, server.weights) == pytest.approx(25 * size, rel=1e-3)
    quick = replace(order, lr=100.0)
    assert server.aggregator.largest_step(quick, contract, server.weights) > 1000
    far = {name: torch.full_like(tensor, 30 * size) for name, tensor in honest(order).delta.items()}
    assert "at most" in notes(server.receive(order.client, replace(honest(order), delta=far)), "refused")[0]["reason"]


def test_updates_that_wait_take_no_more_memory_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter, "HELD_BYTES", 1)
    server = fleet()
    for order in list(server.orders.values())[:4]:
        server.receive(order.client, honest(order))
        assert server.aggregator.robust_filter.state()[0]["held"] == []


def test_a_first_round_is_bounded_by_its_own_median() -> None:
    server = fleet(bound=2)
    before = dict(server.weights)
    play(server, constant)
    assert float(moved(server, before).abs().max()) < 0.1


def test_without_a_liar_the_default_changes_no_bit() -> None:
    plain, guarded = fleet("cos2p-sync", bound=0), fleet("cos2p-sync")
    for server in (plain, guarded):
        play(server, lambda delta: delta, rounds=2)
    assert same(plain.weights, guarded.weights)


def test_a_liar_is_told_of_and_benched_for_good_if_the_recipe_says_so() -> None:
    server = fleet(bound=2, suspicion="exclude")
    effects = play(server, flip, rounds=6)
    doubted = notes(effects, "doubted")
    assert {note["client"] for note in doubted} == {MALICIOUS}
    assert doubted[0]["trust"] == 0.0
    assert doubted[0]["agreement"] < -0.2
    assert [note["client"] for note in notes(effects, "excluded")] == [MALICIOUS]
    tasks = [order.task for order in sent(effects) if order.client == MALICIOUS]
    assert len(tasks) == 4  # after each of its first four lies; not after the fifth, by which it was excluded
    again = server.handle(ClientJoined(MALICIOUS))
    assert sent(again) == []
    assert "counted for nothing (the last agrees by" in notes(again, "excluded")[0]["reason"]


def test_an_update_that_the_method_stumbles_over_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    server = fleet(combine="median")

    def stumble(*_: Any) -> None:
        raise LookupError("masks")

    monkeypatch.setattr(server.method, "accepted", stumble)
    order = next(iter(server.orders.values()))
    effects = server.receive(order.client, honest(order))
    assert notes(effects, "refused")[0]["reason"] == "it cannot be merged: LookupError: masks"
    assert server.aggregator.robust_filter.state()[0]["held"] == []


def test_under_privacy_the_guard_stands_back() -> None:
    private = PrivacySettings(noise="central", multiplier=1.0)
    house = replace(context(VIT, rates=(1.0,) * 5, rounds=50, mu=1.0, redispatch="at-aggregation"), privacy=private)
    made = Played(house, build_method({"name": "fedavg"}, house), random_weights(VIT, 0))
    assert made.aggregator.robust_filter.bound is None
    evaluated = replace(house, robust=RobustSettings(suspicion="weigh"))
    with pytest.raises(ConfigError, match="with \\[privacy\\] leave both"):
        Played(evaluated, build_method({"name": "fedavg"}, evaluated), random_weights(VIT, 0))


def test_nobody_is_doubted_where_nobody_lies() -> None:
    assert notes(play(fleet(suspicion="weigh"), lambda delta: delta, rounds=4), "doubted") == []


@pytest.mark.parametrize("robust", [{"bound": 2, "suspicion": "weigh"}, {"combine": "median"}, {}])
def test_a_restart_in_the_middle_of_a_round_changes_nothing(robust: dict[str, Any]) -> None:
    straight = fleet("cos2p-sync", **robust)
    play(straight, flip)
    orders = sorted(straight.orders.values(), key=lambda order: order.client)
    for order in orders[:3]:
        straight.receive(order.client, honest(order))
    broken = restored(straight, fresh=fleet("cos2p-sync", **robust))
    for server in (straight, broken):
        for order in orders[3:]:
            server.receive(order.client, honest(order))
        play(server, flip)
    assert same(straight.weights, broken.weights)
    assert snapshot(straight)[0] == snapshot(broken)[0]


def test_no_more_updates_are_kept_than_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cos2p.aggregation.robust.filter.MOST_HELD", 3)
    server = fleet(combine="median")
    most = 0
    for order in sorted(server.orders.values(), key=lambda order: order.client):
        server.receive(order.client, honest(order))
        most = max(most, len(server.aggregator.robust_filter.state()[0]["held"]))
    assert most < 3
    assert server.coordinator.version == 1


def test_an_absurdly_long_update_counts_for_nothing_from_the_first_round_on() -> None:
    """The model goes exactly where the others send it: what is left out is filled in with their mean."""
    server, without = fleet(bound=2, suspicion="exclude"), fleet(bound=2, suspicion="weigh")
    before = dict(server.weights)
    effects = play(server, noise)
    play(without, lambda delta: {name: torch.zeros_like(tensor) for name, tensor in delta.items()})
    doubted = notes(effects, "doubted")
    assert [note["client"] for note in doubted] == [MALICIOUS]
    assert "times as long as usual; 0% of it counts" in doubted[0]["reason"]
    a, b = moved(server, before), moved(without, dict(before))
    assert float(torch.cosine_similarity(a, b, dim=0)) > 0.99
    effects = play(server, noise, rounds=4)
    assert [note["client"] for note in notes(effects, "excluded")] == [MALICIOUS]


def test_a_segment_of_one_holder_gets_its_second_opinion_from_the_next() -> None:
    """Of single updates (rounds of one) the later ones are compared with those of other devices before them."""
    house = replace(context(VIT, rates=(1.0,) * 5, rounds=50), robust=RobustSettings(bound=2, suspicion="weigh"))
    server = Played(house, build_method({"name": "fedasync"}, house), random_weights(VIT, 0))
    join_all(server)
    effects = []
    for _ in range(4):
        for order in sorted(server.orders.values(), key=lambda order: order.client):
            update = honest(replace(order, version=0))  # all pull the same way all the time
            delta = flip(update.delta) if order.client == MALICIOUS else update.delta
            effects += server.receive(order.client, replace(update, version=order.version, delta=delta))
    doubted = notes(effects, "doubted")
    assert doubted
    assert {note["client"] for note in doubted} == {MALICIOUS}
