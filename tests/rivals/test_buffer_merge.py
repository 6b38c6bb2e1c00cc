from __future__ import annotations

import torch

from cos2p import SubmodelSpec
from cos2p.aggregation.merge import Contribution, SegmentMerge
from cos2p.methods.widths import width_spec
from cos2p.models.layout import Weights
from cos2p.submodel.slicing import extract
from cos2p_rivals.fedbuff import BufferMerge
from tests.submodel.strategies import random_weights
from tests.tiny import VIT, assert_close, copy, same

FULL = SubmodelSpec.full(VIT)


def update(spec: SubmodelSpec, received: Weights, seed: int, staleness: int = 0) -> Contribution:
    return Contribution("pi", spec, extract(random_weights(VIT, seed), VIT, spec), 1, staleness, received)


def buffered(current: Weights, items: list[Contribution]) -> Weights:
    merge = BufferMerge(VIT)
    for item in items:
        merge.add(item, current)
    return merge.apply(current)


def test_one_fresh_update_is_the_clients_model() -> None:
    current = random_weights(VIT, 0)
    item = update(FULL, current, 1)
    expected = {**current, **{name: current[name] - delta for name, delta in item.delta.items()}}
    assert_close(buffered(current, [item]), expected, atol=1e-6)


def test_everybody_once_and_fresh_is_uniform_fedavg() -> None:
    current = random_weights(VIT, 0)
    items = [update(FULL, current, seed) for seed in (1, 2, 3)]
    fedavg = SegmentMerge(VIT, "uniform")
    for item in items:
        fedavg.add(item, current)
    assert_close(buffered(current, items), fedavg.apply(current), atol=1e-6)


def test_the_sum_is_divided_by_the_number_of_updates_not_by_their_damping() -> None:
    """Δ of staleness 3 counts half: (1·Δ1 + ½·Δ2) / 2, not (1·Δ1 + ½·Δ2) / 1½."""
    current, name = random_weights(VIT, 0), "blocks.1.o.bias"
    fresh, stale = update(FULL, current, 1), update(FULL, random_weights(VIT, 9), 2, staleness=3)
    merged = buffered(current, [fresh, stale])
    step = (fresh.delta[name] + 0.5 * stale.delta[name]) / 2
    torch.testing.assert_close(merged[name], current[name] - step)


def test_of_submodels_every_scalar_is_divided_by_its_holders() -> None:
    current, name = random_weights(VIT, 0), "blocks.1.fc1.bias"
    first = update(width_spec([[0]] * 4, [[0, 1]] * 4), current, 1)
    second = update(width_spec([[0]] * 4, [[1, 2]] * 4), current, 2)
    merged = buffered(current, [first, second])
    expected = current[name].clone()
    expected[0] -= first.delta[name][0]
    expected[1] -= (first.delta[name][1] + second.delta[name][0]) / 2
    expected[2] -= second.delta[name][1]
    torch.testing.assert_close(merged[name], expected)
    assert torch.equal(merged[name][3:], current[name][3:])


def test_state_goes_through_a_checkpoint_and_is_empty_after_a_step() -> None:
    current = random_weights(VIT, 0)
    straight, restored = BufferMerge(VIT), BufferMerge(VIT)
    straight.add(update(FULL, current, 1), current)
    restored.load_state({group: copy(tensors) for group, tensors in straight.state().items()})
    for merge in (straight, restored):
        merge.add(update(FULL, current, 2, 1), current)
    assert same(restored.apply(current), straight.apply(current))
    assert straight.state() == {"sum": {}, "holders": {}}
