"""`training.lr = "auto"` on the device: every method tries rates, and then trains as if it had been given the rate."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cos2p.messages import Order, Task
from cos2p.methods import make_trainer, methods, run_task
from cos2p.training.rate_trial import (
    HARM,
    LADDERS,
    TRIES,
    WORST,
    TrialSize,
    at_own_rate,
    best_place,
    read_report,
    walk,
)
from tests.methods.fleet import Fleet, digits_house
from tests.tiny import same

LADDER = LADDERS["adan"]


def first_training(method: str) -> tuple[Fleet, Order]:
    """The first task of the last device that trains."""
    fleet = Fleet(replace(digits_house(rounds=6), as_bound=True), {"name": method})
    while not make_trainer(fleet.context.config, fleet.orders[-1]).contract.trains:
        fleet.answer()
    return fleet, fleet.orders[-1]


@pytest.mark.parametrize("method", sorted(set(methods()) - {"fedncm"}))
def test_any_method_tries_rates_and_trains_with_the_bits_of_the_one_it_takes(method: str) -> None:
    fleet, order = first_training(method)
    task, shard = fleet.server.orders.task(order), fleet.shards[order.client]
    factor = order.lr / 2e-3
    asked = replace(order, rates=tuple(factor * rate for rate in LADDER))
    tried, remembered = run_task(fleet.context.config, Task(asked, task.weights, task.prefix), shard, {})
    ratios = read_report(asked, tried.report)
    assert len(ratios) == len(LADDER)
    assert any(ratio not in (1.0, WORST) for ratio in ratios), "something was tried"
    plain = replace(order, lr=at_own_rate(asked, tried.report).lr)
    update, also = run_task(fleet.context.config, Task(plain, task.weights, task.prefix), shard, {})
    assert same(dict(tried.delta), dict(update.delta))
    assert same(dict(tried.extras), dict(update.extras))
    assert same(remembered, also)


def test_a_ladder_with_a_cliff_is_climbed_to_its_edge() -> None:
    """Plain SGD on digits: at a rate of a million every loss explodes, and none of those rates is taken."""
    fleet, order = first_training("fedavg")
    settings = {**order.settings, "optimizer": "sgd"}
    asked = replace(order, settings=settings, rates=(1e-3, 1e-2, 1e-1, 1e6, 1e7, 1e8, 1e9))
    task = fleet.server.orders.task(order)
    update, _ = run_task(fleet.context.config, Task(asked, task.weights, task.prefix), fleet.shards[order.client], {})
    assert at_own_rate(asked, update.report).lr <= 1e-1
    assert max(read_report(asked, update.report)) == WORST


def test_a_device_with_a_handful_of_samples_tries_nothing() -> None:
    assert TrialSize.of(samples=7, batch=16, epochs=1) is None


@given(st.integers(8, 5000), st.integers(1, 256), st.integers(1, 10))
def test_a_trial_takes_no_longer_than_the_training(samples: int, batch: int, epochs: int) -> None:
    size = TrialSize.of(samples, batch, epochs)
    if size is not None:
        assert size.share(samples, epochs) <= 1
        assert size.batch * 1 + size.held <= samples


@given(st.lists(st.floats(1, WORST), min_size=1, max_size=8))
def test_a_walk_finds_the_place_that_all_ratios_would_give_if_losses_rise_with_the_rate(ratios: list[float]) -> None:
    asked: list[int] = []

    def ratio_at(place: int) -> float:
        asked.append(place)
        return ratios[place]

    ratios.sort()
    found = walk(len(ratios), ratio_at)
    assert len(asked) <= max(TRIES, len(ratios) - 3)
    assert best_place(found) == best_place(ratios)


@pytest.mark.parametrize("wrong", [float("nan"), -1.0, WORST * 2, "low", None, True])
def test_a_report_that_is_no_trial_is_none(wrong: object) -> None:
    _, order = first_training("fedavg")
    asked = replace(order, rates=(1e-3, 2e-3))
    report = {"trial_0": 0.9, "trial_1": wrong}
    assert read_report(asked, report) == []
    assert at_own_rate(asked, report).lr == order.lr
    assert at_own_rate(asked, {"trial_0": 0.9, "trial_1": 0.9 * HARM}).lr == 2e-3
