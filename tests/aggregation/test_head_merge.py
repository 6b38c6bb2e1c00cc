"""Exits follow what devices tell, early or late, and keep what training added."""

from __future__ import annotations

from dataclasses import replace

import torch

from cos2p.aggregation.head_merge import HeadMerge, closed_form
from cos2p.aggregation.merge import Contribution, SegmentMerge
from cos2p.models.layout import Weights, init_weights
from cos2p.models.spec import SubmodelSpec
from tests.aggregation.brute import random_delta
from tests.tiny import VIT, same

DEPTH = VIT.depth
WEIGHT = f"exits.{DEPTH}.linear.weight"


def statistics(seed: int) -> Weights:
    rng = torch.Generator().manual_seed(seed)
    x = torch.nn.functional.normalize(torch.randn(30, VIT.dim, generator=rng), dim=1)
    labels = torch.randint(VIT.classes, (30,), generator=rng)
    return {
        "counts": torch.bincount(labels, minlength=VIT.classes).float(),
        f"{DEPTH}.sums": torch.zeros(VIT.classes, VIT.dim).index_add_(0, labels, x),
        f"{DEPTH}.length": torch.tensor(60.0),
    }


def contribution(extras: Weights, delta: Weights, weights: Weights) -> Contribution:
    return Contribution("pi", SubmodelSpec.full(VIT), delta, 30, 0, weights, extras=extras)


def merge() -> HeadMerge:
    return HeadMerge(SegmentMerge(VIT, "uniform"), "means", "means")


def expected(*devices: Weights) -> torch.Tensor:
    sums = {name: sum((d[name] for d in devices), torch.zeros(())) for name in devices[0]}
    return closed_form(sums, DEPTH, "means", 0.3)[0]


def test_the_first_round_sets_the_exit_and_nothing_else() -> None:
    start, to = init_weights(VIT, 0), merge()
    for seed in (1, 2):
        to.add(contribution(statistics(seed), {}, start), start)
    first = to.apply(start)
    assert torch.equal(first[WEIGHT], expected(statistics(1), statistics(2)))
    changed = {name for name in start if first[name] is not start[name]}
    assert changed == {WEIGHT, f"exits.{DEPTH}.linear.bias"}


def test_a_late_device_is_heard_and_training_is_kept() -> None:
    start, to = init_weights(VIT, 0), merge()
    to.add(contribution(statistics(1), {}, start), start)
    first = to.apply(start)
    delta = random_delta(VIT, SubmodelSpec.full(VIT), 5)
    to.add(contribution({}, delta, first), first)
    second = to.apply(first)
    to.add(contribution(statistics(2), {}, second), second)
    third = to.apply(second)
    assert torch.allclose(third[WEIGHT], expected(statistics(1), statistics(2)) - delta[WEIGHT], atol=1e-6)
    assert third["blocks.0.q.weight"] is second["blocks.0.q.weight"]


def test_the_state_in_the_middle_of_a_round_goes_on_exactly() -> None:
    start = init_weights(VIT, 0)
    straight, broken, again = merge(), merge(), merge()
    for to in (straight, broken):
        to.add(contribution(statistics(1), {}, start), start)
        after = to.apply(start)
        to.add(contribution(statistics(2), {}, after), after)
    again.load_state(broken.state())
    assert same(again.apply(after), straight.apply(after))


def test_what_is_told_at_the_end_replaces_the_exit() -> None:
    start, to = init_weights(VIT, 0), merge()
    to.add(contribution(statistics(1), {}, start), start)
    first = to.apply(start)
    to.add(replace(contribution(statistics(2), {}, first), settings={"final": True}), first)
    to.add(contribution({}, random_delta(VIT, SubmodelSpec.full(VIT), 5), first), first)
    assert torch.equal(to.apply(first)[WEIGHT], expected(statistics(2)))
