from __future__ import annotations

import torch

from cos2p import SubmodelSpec
from cos2p.aggregation.merge import Contribution
from cos2p.methods.widths import width_spec
from cos2p.models.layout import Weights
from cos2p.submodel.slicing import extract
from cos2p_rivals.fedasync import MixingMerge, damped
from tests.submodel.strategies import random_weights
from tests.tiny import VIT, assert_close, copy, same

FULL = SubmodelSpec.full(VIT)
PART = width_spec([[1]] * 4, [[0, 7]] * 4)


def update(spec: SubmodelSpec, received: Weights, seed: int, staleness: int = 0) -> Contribution:
    return Contribution("pi", spec, extract(random_weights(VIT, seed), VIT, spec), 1, staleness, received)


def mixed(alpha: float, item: Contribution, current: Weights, exponent: float = 0.0) -> Weights:
    merge = MixingMerge(VIT, alpha, exponent)
    merge.add(item, current)
    return merge.apply(current)


def test_damping_of_the_paper() -> None:
    assert [damped(tau, 0.5) for tau in (0, 3)] == [1.0, 0.5]
    assert damped(100, 0.0) == 1.0


def test_alpha_one_replaces_the_model_bitwise() -> None:
    current = random_weights(VIT, 0)
    item = update(FULL, current, 1)
    merged = mixed(1.0, item, current)
    for name, delta in item.delta.items():
        assert torch.equal(merged[name], current[name] - delta)


def test_alpha_zero_leaves_it_bitwise() -> None:
    current = random_weights(VIT, 0)
    assert same(mixed(0.0, update(PART, current, 1), current), current)


def test_a_stale_update_is_mixed_with_the_current_model_not_added_to_it() -> None:
    """x_new is the received model less the update: (1 − α)·w + α·x_new, with α = 0.6 · (3 + 1)^(−1/2) = 0.3."""
    received, current = random_weights(VIT, 0), random_weights(VIT, 5)
    item = update(FULL, received, 1, staleness=3)
    merged = mixed(0.6, item, current, 0.5)
    expected = dict(current)
    for name, delta in item.delta.items():
        expected[name] = 0.7 * current[name] + 0.3 * (received[name] - delta)
    assert_close(merged, expected, atol=1e-6)


def test_of_a_submodel_only_what_it_holds_moves() -> None:
    current = random_weights(VIT, 0)
    item = update(PART, current, 1)
    merged = mixed(0.5, item, current)
    name = "blocks.2.fc1.weight"
    held, others = [0, 7], [1, 2, 3, 4, 5, 6, 8, 9]
    assert torch.equal(merged[name][others], current[name][others])
    torch.testing.assert_close(merged[name][held], current[name][held] - 0.5 * item.delta[name])
    assert torch.equal(merged["exits.1.norm.weight"], current["exits.1.norm.weight"])


def test_the_current_model_is_not_written_into() -> None:
    current = random_weights(VIT, 0)
    before = copy(current)
    mixed(0.5, update(PART, current, 1), current)
    assert same(current, before)


def test_two_updates_of_one_version_are_mixed_one_after_the_other() -> None:
    current = random_weights(VIT, 0)
    first, second = update(FULL, current, 1), update(PART, current, 2)
    merge = MixingMerge(VIT, 0.5, 0.0)
    merge.add(first, current)
    restored = MixingMerge(VIT, 0.5, 0.0)
    restored.load_state({group: copy(tensors) for group, tensors in merge.state().items()})
    for one in (merge, restored):
        one.add(second, current)
    result = merge.apply(current)
    assert same(restored.apply(current), result)
    name = "blocks.0.norm1.bias"
    half = 0.5 * current[name] + 0.5 * (current[name] - first.delta[name])
    torch.testing.assert_close(result[name], 0.5 * half + 0.5 * (current[name] - second.delta[name]))
    assert merge.holders == {}


def test_holders_are_counted() -> None:
    current = random_weights(VIT, 0)
    merge = MixingMerge(VIT, 0.5, 0.0)
    merge.add(update(PART, current, 1), current)
    assert merge.holders["heads.3"].tolist() == [0, 1, 0, 0]
    assert merge.holders["units.0"].tolist() == [1, 0, 0, 0, 0, 0, 0, 1, 0, 0]
