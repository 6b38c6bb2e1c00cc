from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cos2p import SubmodelSpec
from cos2p.aggregation.merge import Contribution, SegmentMerge
from cos2p.models.layout import Weights
from cos2p.submodel.slicing import extract
from cos2p_rivals.heterofl.cut import ScaledCut, places, scaled_cut, scaled_slices, take_scaled
from cos2p_rivals.heterofl.method import ScaledMerge
from tests.submodel.strategies import random_weights
from tests.tiny import VIT, assert_close, copy, same


def contribution(part: ScaledCut, weights: Weights, seed: int, samples: int = 1) -> Contribution:
    delta = take_scaled(random_weights(VIT, seed), VIT, part)
    given_settings = {"thin": part.model_dump(mode="json")}
    return Contribution("pi", SubmodelSpec.full(VIT), delta, samples, 0, weights, given_settings)


@settings(max_examples=30)
@given(st.sampled_from(["uniform", "samples"]), st.integers(0, 30), st.integers(0, 30))
def test_every_scalar_is_averaged_over_its_holders(rule: str, one: int, two: int) -> None:
    weights = random_weights(VIT, 0)
    parts = [scaled_cut(VIT, 0.5, (one, one, one)), scaled_cut(VIT, 0.3, (two, two, two))]
    items = [
        contribution(part, weights, seed, samples) for part, seed, samples in zip(parts, (1, 2), (3, 1), strict=True)
    ]
    merge = ScaledMerge(VIT, rule)  # type: ignore[arg-type]
    for item in items:
        merge.add(item, weights)
    merged = merge.apply(weights)
    for name, tensor in weights.items():
        top, bottom = torch.zeros_like(tensor).double(), torch.zeros_like(tensor).double()
        for part, item in zip(parts, items, strict=True):
            if name in item.delta:
                p = 1.0 if rule == "uniform" else float(item.samples)
                at = places(scaled_slices(VIT, part)[name])
                top[at] += p * item.delta[name].double()
                bottom[at] += p
        expected = torch.where(bottom > 0, tensor.double() - top / bottom.clamp_min(1e-9), tensor.double())
        torch.testing.assert_close(merged[name].double(), expected, atol=1e-6, rtol=1e-6)
        assert torch.equal(merged[name][bottom == 0], tensor[bottom == 0])


def test_whole_models_are_averaged_as_anywhere_else() -> None:
    weights, spec = random_weights(VIT, 0), SubmodelSpec.full(VIT)
    thin_merge, plain = ScaledMerge(VIT), SegmentMerge(VIT, "uniform")
    for seed in (1, 2, 3):
        item = contribution(scaled_cut(VIT, 1.0), weights, seed)
        thin_merge.add(item, weights)
        plain.add(Contribution("pi", spec, extract(random_weights(VIT, seed), VIT, spec), 1, 0, weights), weights)
    assert_close(thin_merge.apply(weights), plain.apply(weights), atol=1e-6)


def test_holders_are_counted_by_the_least_held_scalar() -> None:
    weights, merge = random_weights(VIT, 0), ScaledMerge(VIT)
    merge.add(contribution(scaled_cut(VIT, 1.0), weights, 1), weights)
    merge.add(contribution(scaled_cut(VIT, 0.5), weights, 2), weights)
    assert merge.holders["heads.0"].tolist() == [1.0] * VIT.heads
    assert merge.holders["units.3"].tolist() == [1.0] * VIT.mlp
    merge.apply(weights)
    assert merge.holders == {}


def test_state_goes_through_a_checkpoint() -> None:
    weights = random_weights(VIT, 0)
    first, second = (
        contribution(scaled_cut(VIT, 0.5), weights, 1),
        contribution(scaled_cut(VIT, 0.7, (2, 2, 2)), weights, 2),
    )
    straight, before, after = ScaledMerge(VIT), ScaledMerge(VIT), ScaledMerge(VIT)
    straight.add(first, weights)
    before.add(first, weights)
    after.load_state({group: copy(tensors) for group, tensors in before.state().items()})
    for merge in (straight, after):
        merge.add(second, weights)
    assert same(after.apply(weights), straight.apply(weights))
