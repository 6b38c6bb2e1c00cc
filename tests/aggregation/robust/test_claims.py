"""A device that says it has very many samples weighs no more than a few of the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from cos2p.aggregation.robust.filter import credited, most_credited
from cos2p.aggregation.settings import RobustSettings
from cos2p.messages import Order
from cos2p.methods import build_method, make_trainer
from cos2p.methods.base import RunContext
from cos2p.models.layout import init_weights
from cos2p.server.protocol import ClientJoined
from tests.fuzz.arena import answer, arena, honest_answer
from tests.runtime.played import Played
from tests.tiny import VIT, context, read_update

MALICIOUS = "pi-4"


def house(claim: int, **robust: Any) -> RunContext:
    """Four devices of 10 samples, and one that claims more."""
    plain = context(VIT, rates=(1.0,) * 5, rounds=3, mu=1.0)
    members = {**plain.members, MALICIOUS: replace(plain.members[MALICIOUS], samples=claim)}
    return replace(plain, members=members, robust=RobustSettings.model_validate(robust))


@pytest.mark.parametrize(
    ("claims", "factor", "most"),
    [
        ([10, 10, 2**31], 10.0, 100.0),
        ([1, 2, 3, 4], 2.0, 4.0),  # of two in the middle the lower one: half of a fleet may not raise it
        ([10, 2**31], 10.0, float("inf")),  # nobody knows whose word is the odd one
        ([10, 10, 2**31], 0.0, float("inf")),
        ([1, 1, 1], 0.1, 1.0),
    ],
)
def test_what_counts_follows_the_median_claim(claims: list[int], factor: float, most: float) -> None:
    assert most_credited(claims, factor) == most


def step(claim: int, **robust: Any) -> float:
    """How far the model goes when four devices want −1 everywhere and the fifth, with that claim, wants +1."""
    home = house(claim, bound=0, suspicion="off", **robust)
    server = Played(home, build_method({"name": "fedavg", "weights": "samples"}, home), init_weights(VIT, 0))
    for client in home.members:
        server.handle(ClientJoined(client))
    before = dict(server.weights)
    for order in list(server.orders.values()):
        server.receive(order.client, _wanting(order, 1.0 if order.client == MALICIOUS else -1.0, claim))
    name = next(iter(before))
    return float((before[name] - server.weights[name]).mean())


def _wanting(order: Order, value: float, claim: int) -> bytes:
    honest = answer(VIT, order)
    delta = {name: torch.full_like(tensor, value) for name, tensor in honest.delta.items()}
    return replace(honest, delta=delta, samples=claim if order.client == MALICIOUS else 10).to_bytes()


def test_a_claim_of_billions_weighs_ten_devices_at_most() -> None:
    assert step(10) == pytest.approx(-0.6, abs=1e-5)  # (1 − 4) / 5
    assert step(2**31) == pytest.approx((100 - 40) / 140, abs=1e-5)
    assert step(2**31, samples=1) == pytest.approx(-0.6, abs=1e-5)
    assert step(2**31, samples=0) == pytest.approx(1.0, abs=1e-5)  # what it was before


def test_sums_over_samples_count_as_if_they_were_over_those_credited() -> None:
    server = arena("closed-form exits").server
    (order,) = (order for order in server.orders.values() if order.client == "pi-0")
    reported = read_update(honest_answer(server, order))
    assert credited(reported, 10.0) is reported
    less = credited(reported, 5.0)
    assert (less.samples, float(less.extras["counts"].sum())) == (5, 5.0)
    assert torch.equal(less.extras["4.sums"], reported.extras["4.sums"] / 2)
    assert torch.equal(less.extras["4.moments"], reported.extras["4.moments"] / 2)


def test_the_server_replays_no_more_steps_than_a_claim_is_good_for() -> None:
    """Twelve bytes and a pass over the model for every batch of 2³¹ samples would keep it busy for days."""
    home = house(2**31)
    method = build_method({"name": "fedmezo", "wire": "seeds"}, home)
    server = Played(home, method, init_weights(VIT, 0))
    for client in home.members:
        server.handle(ClientJoined(client))
    steps = {order.client: make_trainer(VIT, order).settings.steps for order in server.orders.values()}
    assert steps == {"pi-0": 3, "pi-1": 3, "pi-2": 3, "pi-3": 3, MALICIOUS: 25}  # batches of four
