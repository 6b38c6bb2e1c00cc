from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cos2p import SubmodelSpec
from cos2p.messages import Update
from cos2p.methods import build_method
from cos2p.methods.base import Call
from cos2p.models.layout import init_weights
from cos2p_rivals.platon.method import Platon, remaining_share
from tests.methods.fleet import Fleet, digits_house, with_rates
from tests.tiny import VIT, context, order, same

CONFIG = VIT.with_(mlp=16)
WEIGHTS = init_weights(CONFIG, 0)


def platon(*rates: float, name: str = "fedavg-platon", rounds: int = 10, **settings: Any) -> Platon:
    method = build_method({"name": name, **settings}, context(CONFIG, rates=rates, rounds=rounds))
    assert isinstance(method, Platon)
    return method


def spec(method: Platon, client: str = "pi-0", cycle: int = 0) -> SubmodelSpec:
    return method.assign(Call(method.context.members[client], cycle, cycle, cycle, WEIGHTS)).spec


def report(method: Platon, given: SubmodelSpec, heads: float, units: float, client: str = "pi-0") -> None:
    extras = {f"heads.{b}": torch.full((len(keep.heads),), heads) for b, keep in enumerate(given.window)}
    extras |= {f"units.{b}": torch.full((len(keep.units),), units) for b, keep in enumerate(given.window)}
    method.accepted(order(given), Update(client, f"{client}#0", 0, given, {}, 1, extras=extras))


def test_the_schedule_begins_at_one_ends_at_the_rate_and_never_rises() -> None:
    shares = [remaining_share(t / 100, 0.25, 0.1, 0.5) for t in range(101)]
    assert shares[:11] == [1.0] * 11
    assert shares[50:] == [0.25] * 51
    assert all(a >= b for a, b in pairwise(shares))
    assert shares[30] == pytest.approx(0.25 + 0.75 * 0.5**3)


@given(st.floats(0, 1), st.floats(0.01, 1), st.floats(0, 0.5), st.floats(0, 0.49))
def test_the_share_stays_between_the_rate_and_one(progress: float, rate: float, initial: float, final: float) -> None:
    assert rate - 1e-9 <= remaining_share(progress, rate, initial, final) <= 1.0


def test_every_segment_is_tried_once_before_any_is_tried_again() -> None:
    method = platon(0.25)
    tried: list[tuple[int, int]] = []
    for cycle in range(4):
        given = spec(method, cycle=cycle)
        tried += [(block, unit) for block, keep in enumerate(given.window) for unit in keep.units]
        assert {len(keep.units) for keep in given.window} == {4}  # spread evenly over the blocks
        assert {len(keep.heads) for keep in given.window} == {1}
        report(method, given, 1.0, 1.0)
    assert len(set(tried)) == len(tried) == 64


def test_then_the_best_are_kept_whichever_block_they_are_in() -> None:
    method = platon(0.25)
    method.scores["pi-0/heads"] = torch.arange(16.0)
    method.scores["pi-0/units"] = torch.arange(64.0)
    best = spec(method)
    assert [keep.heads for keep in best.window] == [(), (), (), (0, 1, 2, 3)]
    assert [len(keep.units) for keep in best.window] == [0, 0, 0, 16]


def test_what_is_not_held_keeps_its_score() -> None:
    method = platon(0.25)
    method.scores["pi-0/units"] = torch.arange(64.0)
    method.scores["pi-0/heads"] = torch.arange(16.0)
    report(method, spec(method), heads=0.0, units=0.5)
    assert method.scores["pi-0/units"][:48].tolist() == list(range(48))
    assert method.scores["pi-0/units"][48:].unique().tolist() == [0.5]
    assert [len(keep.units) for keep in spec(method).window] == [0, 0, 16, 0]


def test_devices_have_scores_and_orders_of_their_own() -> None:
    method = platon(0.25, 0.25)
    first = spec(method, "pi-0")
    assert first != spec(method, "pi-1")
    report(method, first, 1.0, 1.0, "pi-0")
    assert torch.isinf(method.scores["pi-1/units"]).all()


def test_faithful_begins_with_the_whole_model_and_ends_at_the_rate() -> None:
    method = platon(0.25, rounds=10, budget="faithful")
    sizes = [sum(len(keep.units) for keep in spec(method, cycle=cycle).window) for cycle in range(10)]
    assert sizes[:2] == [64, 64]
    assert sizes[5:] == [16] * 5
    assert sizes == sorted(sizes, reverse=True)


def test_an_asynchronous_run_counts_a_clients_own_tasks() -> None:
    """40 versions of 4 clients are 10 tasks each."""
    method = platon(*(0.25,) * 4, name="fedasync-platon", rounds=40, budget="faithful")
    assert sum(len(keep.units) for keep in spec(method, cycle=5).window) == 16
    assert sum(len(keep.units) for keep in spec(method, cycle=2).window) > 16


def test_with_the_whole_model_it_is_fedavg() -> None:
    everybody = with_rates(digits_house(rounds=2), 1.0, 1.0)
    platon_weights = Fleet(everybody, {"name": "fedavg-platon"}).run().server.weights
    assert same(platon_weights, Fleet(everybody, {"name": "fedavg"}).run().server.weights)


def test_a_run_fills_the_scores_from_the_devices_own_windows() -> None:
    fleet = Fleet(digits_house(rounds=2), {"name": "fedavg-platon", "window": 2}).run()
    method = fleet.method
    assert isinstance(method, Platon)
    for name in fleet.context.members:
        known = method.scores[f"{name}/units"]
        assert torch.isfinite(known).any()
        assert (known[torch.isfinite(known)] > 0).all()
        assert any(key.startswith("platon.mean") for key in fleet.memories[name])
