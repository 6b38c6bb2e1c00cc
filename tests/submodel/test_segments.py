from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

from cos2p import ModelConfig, SubmodelSpec
from cos2p.models.layout import layout
from cos2p.models.spec import BlockKeep
from cos2p.submodel.rates import segment_costs
from cos2p.submodel.segments import (
    expand,
    full_length,
    segment_drift,
    segment_key,
    segment_norms,
    segment_positions,
    segment_sizes,
)
from cos2p.submodel.slicing import window_slices
from tests.aggregation.brute import random_delta, segments, spread_out
from tests.submodel.strategies import CONFIGS, random_weights, submodels_around
from tests.tiny import VIT, window

Case = tuple[ModelConfig, SubmodelSpec, int]
families = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@settings(max_examples=40)
@given(submodels_around())
def test_norms_are_those_of_every_segment_summed_one_by_one(case: Case) -> None:
    config, spec, seed = case
    delta = random_delta(config, spec, seed)
    norms, full = segment_norms(delta, config), spread_out(config, spec, delta)
    seen = set()
    for segment in segments(config):
        if not segment.held_by(spec, delta):
            continue
        seen.add(segment.key)
        value = norms[segment.key]
        if segment.place is not None:
            places = segment_positions(config, spec, segment.key)
            assert places is not None
            value = value[places.tolist().index(segment.place)]
        assert value.item() == pytest.approx(segment.norm(full), rel=1e-5), (segment.key, segment.place)
    empty = {key for key, value in norms.items() if value.numel() == 0}
    assert norms.keys() == seen | empty


@settings(max_examples=40)
@given(submodels_around())
def test_drift_is_the_norm_of_the_difference(case: Case) -> None:
    config, spec, seed = case
    now, then, slices = random_weights(config, seed), random_weights(config, seed + 1), window_slices(config, spec)
    drift = segment_drift(now, then, slices, config)
    difference = {}
    for name, cut in slices.items():
        moved = now[name] - then[name]
        difference[name] = moved if cut is None else moved.index_select(*cut)
    expected = segment_norms(difference, config)
    assert drift.keys() == expected.keys()
    for key in drift:
        torch.testing.assert_close(drift[key], expected[key])


def test_norms_by_hand() -> None:
    """All ones: a head of size 4 has 4·(4·16) weights and 3·4 biases, a unit 2·16 and one."""
    spec = SubmodelSpec(1, (BlockKeep((0, 3), (5,)),), (2,))
    norms = segment_norms({n: torch.ones_like(t) for n, t in random_delta(VIT, spec, 0).items()}, VIT)
    assert norms["heads.1"].tolist() == [268.0, 268.0]
    assert norms["units.1"].tolist() == [33.0]
    assert norms["blocks.1.o.bias"].item() == 16.0
    assert norms["exits.2.linear.weight"].item() == 48.0


@families
def test_sizes_are_the_costs_of_the_segments_and_add_up_to_the_model(config: ModelConfig) -> None:
    tensors = {name: torch.empty(p.shape) for name, p in layout(config).items()}
    sizes = segment_sizes(tensors, config)
    assert (sizes["heads.0"], sizes["units.0"]) == segment_costs(config)
    assert sum(size * (full_length(config, key) or 1) for key, size in sizes.items()) == sum(
        tensor.numel() for tensor in tensors.values()
    )


@families
def test_expanded_numbers_fit_their_tensors_and_reach_their_segments(config: ModelConfig) -> None:
    """Multiply ones by each segment's number: every scalar then says which segment it belongs to."""
    numbers = {}
    for i, segment in enumerate(segments(config)):
        if segment.place is None:
            numbers[segment.key] = torch.tensor(float(i))
        else:
            numbers.setdefault(segment.key, torch.zeros(full_length(config, segment.key) or 0))[segment.place] = i
    for i, segment in enumerate(segments(config)):
        for name, mask in segment.masks.items():
            assert segment_key(config, name) == segment.key
            values = torch.ones(layout(config)[name].shape) * expand(numbers, name, config)
            assert (values[mask] == i).all()


def test_rounding_does_not_depend_on_the_order_of_the_tensors() -> None:
    delta = random_delta(VIT, window(VIT, 1), 0)
    backwards = dict(reversed(delta.items()))
    one, other = segment_norms(delta, VIT), segment_norms(backwards, VIT)
    assert list(one) == list(other)
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_positions() -> None:
    spec = SubmodelSpec(1, (BlockKeep((0, 3), ()), BlockKeep((), (5, 9))), (3,))
    found = {key: segment_positions(VIT, spec, key) for key in ("heads.1", "units.1", "units.2", "blocks.1.o.bias")}
    assert {k: None if v is None else v.tolist() for k, v in found.items()} == {
        "heads.1": [0, 3], "units.1": [], "units.2": [5, 9], "blocks.1.o.bias": None,
    }  # fmt: skip
    assert full_length(VIT, "exits.1.norm.weight") is None
    assert segment_positions(VIT, window(VIT, 0), "embed.cls") is None
