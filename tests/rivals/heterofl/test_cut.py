from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cos2p import ModelConfig, SubmodelSpec, model_config
from cos2p.errors import BudgetError
from cos2p.models.layout import layout
from cos2p.models.transformer import ElasticTransformer
from cos2p.submodel.rates import prunable
from cos2p_rivals.heterofl.cut import (
    fitted_config,
    places,
    scaled_config,
    scaled_cut,
    scaled_rate,
    scaled_shapes,
    scaled_sizes,
    scaled_slices,
    take_scaled,
)
from tests.submodel.strategies import CONFIGS, random_inputs, random_weights
from tests.tiny import copy, same

VIT, BERT = CONFIGS["vit"], CONFIGS["bert"]
llamas = pytest.mark.parametrize("config", [config for config in CONFIGS.values() if config.family == "llama"])
both = pytest.mark.parametrize("config", [VIT, BERT, CONFIGS["vit shared exit"]])
every = pytest.mark.parametrize("config", [VIT, BERT, *(c for c in CONFIGS.values() if c.family == "llama")])
shares = st.sampled_from([0.25, 0.5, 0.7, 1.0])


def test_sizes_are_rounded_up_and_exact_where_they_can_be() -> None:
    assert scaled_sizes(VIT, 0.5) == (8, 2, 5)
    assert scaled_sizes(VIT, 0.51) == (9, 3, 6)
    assert scaled_sizes(VIT, 1.0) == (16, 4, 10)


@given(st.floats(0.02, 1.0))
def test_heads_and_units_cost_at_most_the_rate(rate: float) -> None:
    config = model_config("vit-nano")
    r = scaled_rate(config, rate)
    assert prunable(scaled_config(config, r)) <= rate * prunable(config) + 1e-6
    assert r <= rate**0.5 + 1e-6


def test_the_whole_model_has_rate_one_and_no_rate_is_wasted() -> None:
    config = model_config("vit-tiny")
    assert scaled_rate(config, 1.0) == 1.0
    for rate in (1 / 16, 1 / 4, 9 / 16):
        used = prunable(scaled_config(config, scaled_rate(config, rate))) / prunable(config)
        assert used > 0.99 * rate


def test_a_rate_below_the_thinnest_submodel_is_refused() -> None:
    with pytest.raises(BudgetError, match="choose a larger rate"):
        scaled_rate(VIT, 0.001)


@llamas
def test_of_a_llama_whole_heads_are_left_out(config: ModelConfig) -> None:
    """Rows of every kept head are all there, in order, and a key stays with its queries."""
    part = scaled_cut(config, 0.5, (0, 1, 0))
    small, size = scaled_config(config, 0.5), config.head_dim
    assert small.head_dim == size
    assert small.queries_per_group == config.queries_per_group
    cuts = scaled_slices(config, part)
    groups = [(config.groups - 1 + i) % config.groups for i in range(small.groups)]
    keys = [group * size + i for group in groups for i in range(size)]
    wide = config.queries_per_group * size
    queries = [group * wide + i for group in groups for i in range(wide)]
    for name, rows in (("k", keys), ("v", keys), ("q", queries)):
        found = cuts[f"blocks.0.{name}.weight"][0]
        assert found is not None
        assert found.tolist() == rows
    assert fitted_config(config, take_scaled(random_weights(config, 0), config, part, all_exits=True)) == small


@llamas
def test_a_llama_without_its_last_heads_and_units_computes_what_the_full_one_does_with_them_at_zero(
    config: ModelConfig,
) -> None:
    """With the whole residual width, so that norms see the same: positions inside a head are the head's own."""
    weights = random_weights(config, 2)
    whole = scaled_cut(config, 1.0)
    half = scaled_cut(config, 0.5)
    part = half.model_copy(update={"residual": whole.residual})
    cuts = scaled_slices(config, part)
    for name in weights:
        if name.endswith((".o.weight", ".fc2.weight")):
            kept = torch.zeros_like(weights[name])
            kept[places(cuts[name])] = weights[name][places(cuts[name])]
            weights[name] = kept
    small = scaled_config(config, 0.5).with_(dim=config.dim, head_dim=config.head_dim)
    inputs = random_inputs(config, 2)
    with torch.no_grad():
        own = ElasticTransformer(small, SubmodelSpec.full(small)).load(take_scaled(weights, config, part))(inputs)
        full = ElasticTransformer(config, SubmodelSpec.full(config)).load(weights)(inputs)
    torch.testing.assert_close(own[-1], full[-1], atol=1e-5, rtol=1e-4)


@both
def test_index_lists_are_the_official_ones(config: ModelConfig) -> None:
    """Straight from the public code's description: roll, cut; for q, k, v roll, reshape by heads, cut each row."""
    r, q = 0.5, 5
    slices = scaled_slices(config, scaled_cut(config, r, (q, q, q)))
    d, h, size, f = config.dim, config.heads, config.head_dim, config.mlp
    residual = np.roll(np.arange(d), q % d)[: -(-d // 2)]
    units = np.roll(np.arange(f), q % f)[: -(-f // 2)]
    rows = np.roll(np.arange(d), q % d).reshape(h, size)[:, : -(-size // 2)].reshape(-1)
    for block in range(config.depth):
        at = f"blocks.{block}."
        for name, expected in {
            "q.weight": (rows, residual), "k.weight": (rows, residual), "v.weight": (rows, residual),
            "o.weight": (residual, rows), "fc1.weight": (units, residual), "fc2.weight": (residual, units),
            "q.bias": (rows,), "o.bias": (residual,), "fc1.bias": (units,), "fc2.bias": (residual,),
            "norm1.weight": (residual,), "norm2.bias": (residual,),
        }.items():  # fmt: skip
            found = slices[at + name]
            assert [cut.tolist() for cut in found if cut is not None] == [e.tolist() for e in expected], name


@both
def test_every_layer_has_the_same_residual_window(config: ModelConfig) -> None:
    slices = scaled_slices(config, scaled_cut(config, 0.5, (3, 1, 2)))
    residual = ("norm1.weight", "norm1.bias", "norm2.weight", "o.bias", "fc2.bias")
    lists = [slices[f"blocks.{block}.{name}"][0] for block in range(config.depth) for name in residual]
    lists += [cuts[-1] for name, cuts in slices.items() if name.startswith("embed.") and "patch" not in name]
    lists += [cuts[-1] for name, cuts in slices.items() if name.endswith("linear.weight")]
    assert {tuple(cut.tolist()) for cut in lists if cut is not None} == {(13, 14, 15, 0, 1, 2, 3, 4)}
    assert None not in lists


@every
@given(share=shares, shift=st.integers(0, 40))
def test_the_devices_tensors_are_those_of_the_smaller_model(config: ModelConfig, share: float, shift: int) -> None:
    part = scaled_cut(config, share, (shift, shift, shift))
    taken = take_scaled(random_weights(config, 0), config, part)
    small = layout(scaled_config(config, share))
    assert {name: tuple(tensor.shape) for name, tensor in taken.items()} == scaled_shapes(config, part)
    assert all(tuple(tensor.shape) == small[name].shape for name, tensor in taken.items())
    assert {n for n in layout(config) if not n.startswith("exits.")} < set(taken)


@every
@given(share=shares, shift=st.integers(0, 40))
def test_taking_and_putting_back_is_a_bitwise_identity(config: ModelConfig, share: float, shift: int) -> None:
    part, weights = scaled_cut(config, share, (shift, shift + 1, shift + 2)), random_weights(config, 1)
    before = copy(weights)
    for name, tensor in take_scaled(weights, config, part).items():
        weights[name][places(scaled_slices(config, part)[name])] = tensor
    assert same(weights, before)


def test_over_as_many_rounds_as_entries_every_entry_appears_equally_often() -> None:
    """k times with step 1; a row of q, k, v as often as the entries of one head that are kept, for every head."""
    seen = {name: torch.zeros(VIT.mlp if "fc" in name else VIT.dim) for name in ("norm1.weight", "fc1.bias", "q.bias")}
    for q in range(VIT.dim * VIT.mlp):
        slices = scaled_slices(VIT, scaled_cut(VIT, 0.5, (q, q, q)))
        for name, count in seen.items():
            cut = slices[f"blocks.0.{name}"][0]
            assert cut is not None
            assert len(set(cut.tolist())) == len(cut)
            count[cut] += 1
    assert seen["norm1.weight"].unique().tolist() == [VIT.mlp * 8]
    assert seen["fc1.bias"].unique().tolist() == [VIT.dim * 5]
    assert seen["q.bias"].unique().tolist() == [VIT.mlp * 2 * VIT.heads]


@given(shift=st.integers(0, 100))
def test_small_parts_lie_inside_large_ones(shift: int) -> None:
    small, large = (scaled_slices(VIT, scaled_cut(VIT, share, (shift, shift, shift))) for share in (0.3, 0.6))
    for name, cuts in small.items():
        for inner, outer in zip(cuts, large[name], strict=True):
            assert inner is None or outer is None or set(inner.tolist()) <= set(outer.tolist()), name
