from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cos2p import ModelConfig, model_config
from cos2p.errors import ConfigError
from cos2p.models.layout import Axis, layout
from cos2p.models.sizes import SIZES
from cos2p.submodel.rates import SubmodelSize, cut, prunable, segment_costs, spread
from tests.submodel.strategies import CONFIGS

rates = st.floats(1e-4, 1.0) | st.sampled_from([1 / 64, 1 / 16, 1 / 4, 9 / 16, 1.0])
ratios = st.floats(0.01, 100.0) | st.sampled_from([0.0, 0.5, 1.0, 2.0, math.inf])
models = st.sampled_from([*SIZES.values(), *CONFIGS.values()])


def cost(config: ModelConfig, size: SubmodelSize) -> int:
    head, unit = segment_costs(config)
    return size.heads * head + size.units * unit


@given(models, rates, ratios)
def test_cost_never_exceeds_the_rate(config: ModelConfig, rate: float, ratio: float) -> None:
    size = cut(config, rate, ratio)
    # "<1": the guard against √.5625·8 = 5.999… may give a 1e-9th of a segment too much, never a whole scalar
    assert cost(config, size) - rate * prunable(config) < 1
    assert 1 <= size.blocks <= config.depth
    assert size.width <= 1
    assert size.heads <= size.blocks * config.groups
    assert size.units <= size.blocks * config.mlp


@given(models, rates, ratios)
def test_at_most_one_head_and_one_unit_are_wasted(config: ModelConfig, rate: float, ratio: float) -> None:
    size = cut(config, rate, ratio)
    head, unit = segment_costs(config)
    full_width = size.blocks * (config.groups * head + config.mlp * unit)
    assert min(rate * prunable(config), full_width) - cost(config, size) < head + unit + 1


@given(models, rates)
def test_only_width_keeps_every_block_and_only_depth_every_segment(config: ModelConfig, rate: float) -> None:
    assert cut(config, rate, 0.0).blocks == config.depth
    deep = cut(config, rate, math.inf)
    assert deep.blocks == max(1, math.floor(config.depth * rate + 1e-9))
    if config.depth * rate >= 1:
        assert deep.width == pytest.approx(1.0, abs=1e-8)  # the guard may round the blocks up


@given(models, rates, rates)
def test_a_larger_rate_is_never_shallower(config: ModelConfig, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert cut(config, low).blocks <= cut(config, high).blocks


@pytest.mark.parametrize(
    ("name", "rate", "blocks", "heads", "units"),
    [
        ("vit-tiny", 1 / 16, 2, 4, 1024),
        ("vit-tiny", 1 / 4, 4, 16, 4096),
        ("vit-tiny", 9 / 16, 6, 36, 9216),
        ("vit-base", 1 / 16, 3, 9, 2304),
        ("vit-base", 9 / 16, 9, 81, 20736),
        ("vit-base", 1 / 64, 1, 2, 576),  # √(1/64)·12 = 1.5 blocks: the half goes to the width, 12/64 instead of 1/8
        ("vit-base-ext", 1 / 64, 2, 3, 768),
        ("vit-base-ext", 1 / 4, 8, 48, 12288),
        ("vit-base-ext", 9 / 16, 12, 108, 27648),
        ("bert-small", 1 / 4, 2, 8, 2048),
        ("vit-tiny", 1.0, 8, 64, 16384),
    ],
)
def test_tiers_of_the_paper(name: str, rate: float, blocks: int, heads: int, units: int) -> None:
    size = cut(model_config(name), rate)
    assert (size.blocks, size.heads, size.units) == (blocks, heads, units)


@pytest.mark.parametrize(("name", "millions"), [("vit-tiny", 25.19), ("vit-base", 85.00), ("vit-base-ext", 113.33)])
def test_prunable_parameters(name: str, millions: float) -> None:
    assert prunable(model_config(name)) / 1e6 == pytest.approx(millions, abs=0.006)


def test_width_only_and_balanced_cost_the_same_at_the_paper_tiers() -> None:
    for name in ("vit-tiny", "vit-base", "vit-base-ext"):
        for rate in (1 / 16, 1 / 4, 9 / 16):
            config = model_config(name)
            assert cost(config, cut(config, rate)) == cost(config, cut(config, rate, 0.0)) == rate * prunable(config)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
def test_segment_costs_count_the_cut_tensors(config: ModelConfig) -> None:
    head, unit = segment_costs(config)
    block = {name: p for name, p in layout(config).items() if name.startswith("blocks.0.") and p.cut is not None}
    scalars = dict.fromkeys(Axis, 0)
    for parameter in block.values():
        assert parameter.cut is not None
        scalars[parameter.cut[1]] += math.prod(parameter.shape)
    assert scalars[Axis.QUERY] + scalars[Axis.KEY] == config.groups * head
    assert scalars[Axis.UNIT] == config.mlp * unit


@given(st.integers(0, 200), st.integers(1, 20), st.integers(-5, 50))
def test_spread_deals_everything_evenly(total: int, blocks: int, rotation: int) -> None:
    dealt = spread(total, blocks, rotation)
    assert sum(dealt) == total
    assert max(dealt) - min(dealt) <= 1
    assert dealt == [spread(total, blocks)[(i - rotation) % blocks] for i in range(blocks)]


@pytest.mark.parametrize("rate", [0.0, -0.5, 1.0001, math.nan, math.inf])
def test_a_rate_outside_its_range_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match=rf"rate {rate} is outside \(0, 1\]; it is the share"):
        cut(model_config("vit-nano"), rate)


@pytest.mark.parametrize("ratio", [-1.0, math.nan])
def test_a_ratio_below_zero_is_refused(ratio: float) -> None:
    with pytest.raises(
        ConfigError, match=rf"ratio {ratio} must be ≥ 0 \(1 is balanced, 0 only width, inf only depth\)"
    ):
        cut(model_config("vit-nano"), 0.5, ratio)
