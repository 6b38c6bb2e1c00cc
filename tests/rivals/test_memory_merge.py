from __future__ import annotations

import torch

from cos2p import SubmodelSpec
from cos2p.aggregation.merge import Contribution
from cos2p.methods.widths import width_spec
from cos2p.models.layout import Weights
from cos2p.submodel.slicing import trained_shapes
from cos2p_rivals.ramfed import MemoryMerge
from tests.submodel.strategies import random_weights
from tests.tiny import VIT, copy, same

FIRST = width_spec([[0]] * 4, [[0, 1]] * 4)
SECOND = width_spec([[1]] * 4, [[2, 3]] * 4)
FC1 = "blocks.1.fc1.bias"


def update(spec: SubmodelSpec, value: float, weights: Weights, client: str = "pi-0") -> Contribution:
    delta = {name: torch.full(shape, value) for name, shape in trained_shapes(VIT, spec).items()}
    return Contribution(client, spec, delta, 1, 0, weights)


def test_the_second_round_applies_the_first_rounds_memory_again() -> None:
    weights = {name: torch.zeros_like(t) for name, t in random_weights(VIT, 0).items()}
    merge = MemoryMerge(VIT, clients=1)
    merge.add(update(FIRST, 1.0, weights), weights)
    once = merge.apply(weights)
    assert once[FC1].tolist() == [-1.0] * 2 + [0.0] * 8
    merge.add(update(SECOND, 10.0, once), once)
    twice = merge.apply(once)
    assert twice[FC1].tolist() == [-2.0] * 2 + [-10.0] * 2 + [0.0] * 6
    assert twice["blocks.0.norm1.weight"].unique().tolist() == [-11.0]  # shared: replaced, not added
    assert merge.apply(twice)[FC1].tolist() == [-3.0] * 2 + [-20.0] * 2 + [0.0] * 6  # absent clients count too


def test_memory_outside_the_mask_is_untouched() -> None:
    weights = random_weights(VIT, 0)
    merge = MemoryMerge(VIT, clients=2)
    merge.add(update(FIRST, 1.0, weights), weights)
    before = copy(merge.state()["memory.pi-0"])
    merge.add(update(SECOND, 5.0, weights), weights)
    after = merge.state()["memory.pi-0"]
    assert torch.equal(after[FC1][:2], before[FC1][:2])
    assert torch.equal(after[FC1][4:], before[FC1][4:])
    assert after[FC1][2:4].tolist() == [5.0, 5.0]
    assert torch.equal(after["blocks.2.o.weight"][:, :4], before["blocks.2.o.weight"][:, :4])


def test_every_client_has_a_memory_of_its_own_and_all_are_divided_by_n() -> None:
    weights = {name: torch.zeros_like(t) for name, t in random_weights(VIT, 0).items()}
    merge = MemoryMerge(VIT, clients=4)
    merge.add(update(FIRST, 1.0, weights, "a"), weights)
    merge.add(update(FIRST, 3.0, weights, "b"), weights)
    assert merge.apply(weights)[FC1][0] == -1.0  # (1 + 3) / 4


def test_filled_divides_by_those_that_know_a_region() -> None:
    weights = {name: torch.zeros_like(t) for name, t in random_weights(VIT, 0).items()}
    merge = MemoryMerge(VIT, clients=4, denominator="filled")
    merge.add(update(FIRST, 1.0, weights, "a"), weights)
    merge.add(update(SECOND, 3.0, weights, "b"), weights)
    assert merge.apply(weights)[FC1].tolist() == [-1.0] * 2 + [-3.0] * 2 + [0.0] * 6
    assert merge.apply(weights)["blocks.0.norm1.bias"].unique().tolist() == [-2.0]


def test_old_memories_fade_with_max_age() -> None:
    weights = {name: torch.zeros_like(t) for name, t in random_weights(VIT, 0).items()}
    merge = MemoryMerge(VIT, clients=1, max_age=1)
    merge.add(update(FIRST, 1.0, weights), weights)
    steps = [float(merge.apply(weights)[FC1][0]) for _ in range(3)]
    assert steps == [-1.0, -1.0, 0.0]  # fresh, one round old, too old


def test_what_nobody_ever_trained_stays_bitwise() -> None:
    weights = random_weights(VIT, 0)
    merge = MemoryMerge(VIT, clients=3)
    merge.add(update(FIRST, 1.0, weights), weights)
    merged = merge.apply(weights)
    assert torch.equal(merged[FC1][2:], weights[FC1][2:])
    assert torch.equal(merged["exits.2.linear.weight"], weights["exits.2.linear.weight"])
    assert torch.equal(merged["blocks.0.q.weight"][4:], weights["blocks.0.q.weight"][4:])


def test_state_goes_through_a_checkpoint() -> None:
    weights = random_weights(VIT, 0)
    straight, broken = (MemoryMerge(VIT, 2, "filled", max_age=2) for _ in range(2))
    for merge in (straight, broken):
        merge.add(update(FIRST, 1.0, weights), weights)
        merge.apply(weights)
        merge.add(update(SECOND, 2.0, weights, "client.with.dots"), weights)
    restored = MemoryMerge(VIT, 2, "filled", max_age=2)
    restored.load_state({group: copy(tensors) for group, tensors in broken.state().items()})
    for _ in range(3):
        assert same(restored.apply(weights), straight.apply(weights))
    assert restored.holders == straight.holders == {}
