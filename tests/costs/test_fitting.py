from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cos2p import ModelConfig, model_config
from cos2p.costs.fitting import fit_submodel, make_spec
from cos2p.costs.ledger import peak
from cos2p.costs.shape import Workload
from cos2p.errors import BudgetError, ConfigError
from cos2p.models.layout import init_weights
from cos2p.models.sizes import SIZES
from cos2p.models.transformer import ElasticTransformer
from cos2p.numerics.optimizers import make_optimizer
from cos2p.seeding import torch_rng
from cos2p.submodel.rates import cut, prunable, segment_costs
from cos2p.submodel.slicing import extract, scatter

TINY = model_config("vit-tiny")


@given(st.sampled_from(list(SIZES.values())), st.floats(1e-3, 1.0), st.floats(0, 1), st.none() | st.integers(0, 9))
def test_a_spec_has_the_counts_of_its_rate(config: ModelConfig, rate: float, where: float, seed: int | None) -> None:
    size = cut(config, rate)
    start = round(where * (config.depth - size.blocks))
    spec = make_spec(config, rate, start, seed=seed)
    assert (spec.frozen, len(spec.window), spec.exits) == (start, size.blocks, (start + size.blocks,))
    heads, units = sum(len(k.heads) for k in spec.window), sum(len(k.units) for k in spec.window)
    assert (heads, units) == (size.heads, size.units)
    head, unit = segment_costs(config)
    assert heads * head + units * unit < rate * prunable(config) + 1


def test_without_a_seed_the_leading_segments_are_kept() -> None:
    spec = make_spec(TINY, 0.25, start=2)
    assert spec.window[0].heads == (0, 1, 2, 3)
    assert spec.window[3].units == tuple(range(1024))


def test_a_seed_draws_the_segments_the_same_every_time_and_others_in_every_block() -> None:
    first, again, other = (make_spec(TINY, 0.25, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    assert first.window[0].units != first.window[1].units


def test_the_remainder_goes_round_with_the_window() -> None:
    """3 heads on 2 blocks: the block that gets one more changes as the window rolls."""
    config = model_config("vit-nano", depth=8, heads=4)
    counts = {start: [len(k.heads) for k in make_spec(config, 3 / 32, start, ratio=1.5).window] for start in (0, 1)}
    assert counts == {0: [2, 1], 1: [1, 2]}


def test_exits_of_the_fleets_tiers() -> None:
    assert make_spec(TINY, 0.5625, start=1, tier_blocks=[2, 4, 8]).exits == (3, 5, 7)


@pytest.mark.parametrize("start", [-1, 5])
def test_a_window_outside_the_model_is_refused(start: int) -> None:
    message = rf"start {start}: a window of 4 blocks in a model of 8 begins at block 0 to 4"
    with pytest.raises(ConfigError, match=message):
        make_spec(TINY, 0.25, start)


@pytest.mark.parametrize("memory", ["100MB", "300MB", "600MB"])
@pytest.mark.parametrize("start", [0, 3, 7])
def test_the_submodel_fits_and_uses_what_there_is(memory: str, start: int) -> None:
    spec = fit_submodel(TINY, memory, start=start)
    assert spec.frozen == start
    needed, budget = peak(TINY, spec, Workload()).total, int(memory.removesuffix("MB")) * 10**6
    assert needed <= budget
    whole = spec.top == TINY.depth and all(len(k.units) == TINY.mlp for k in spec.window)
    assert whole or needed > 0.75 * budget


def test_a_lighter_optimizer_and_batch_leave_room_for_a_larger_submodel() -> None:
    def size(**workload: object) -> int:
        return sum(len(k.units) for k in fit_submodel(TINY, "200MB", **workload).window)  # type: ignore[arg-type]

    assert size() < size(optimizer="sgd")
    assert size() < size(batch=2)


def test_a_budget_too_small_for_anything_is_refused() -> None:
    with pytest.raises(BudgetError, match=r"window at block 3 trains in 10.0 MB with 8 samples at a time; a smaller"):
        fit_submodel(TINY, "10MB", start=3)


def test_cut_train_and_merge_in_five_lines() -> None:
    config = model_config("vit-nano")
    images, labels = torch.randn(4, 1, 8, 8, generator=torch_rng(0, "images")), torch.tensor([0, 1, 2, 3])

    weights = init_weights(config, seed=0)
    spec = fit_submodel(config, memory="6MB", batch=4)
    submodel = ElasticTransformer(config, spec).load(extract(weights, config, spec))
    torch.nn.functional.cross_entropy(submodel(images)[-1], labels).backward()
    make_optimizer("adan", submodel.parameters(), lr=1e-3).step()
    merged = scatter(submodel.weights(), weights, config, spec)

    untouched, before = f"blocks.{config.depth - 1}.q.weight", init_weights(config, seed=0)
    assert not torch.equal(merged["blocks.0.q.weight"], before["blocks.0.q.weight"])
    assert len(spec.window) < config.depth
    assert torch.equal(merged[untouched], before[untouched])
