from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from cos2p import model_config
from cos2p.methods.widths import (
    random_spec,
    rolling,
    spread_at_random,
)
from cos2p.seeding import torch_rng
from cos2p.submodel.rates import cut
from tests.tiny import VIT


def test_the_papers_smallest_tier_has_fewer_heads_than_blocks() -> None:
    assert (cut(model_config("vit-tiny"), 1 / 16, ratio=0.0).heads, model_config("vit-tiny").depth) == (4, 8)
    assert (cut(model_config("vit-base-ext"), 1 / 64, ratio=0.0).heads, model_config("vit-base-ext").depth) == (3, 16)


@given(st.integers(1, 20), st.integers(0, 20), st.integers(0, 100))
def test_rolling_takes_neighbours_around_the_end(segments: int, count: int, start: int) -> None:
    count = min(count, segments)
    found = rolling(segments, count, start)
    assert len(set(found)) == count
    assert all((b - a) % segments == 1 for a, b in pairwise(found)) or segments == 1


@given(st.integers(0, 40), st.integers(1, 10), st.integers(0, 5))
def test_spreading_at_random_is_even_and_complete(total: int, blocks: int, seed: int) -> None:
    counts = spread_at_random(total, blocks, torch_rng(seed, "test"))
    assert sum(counts) == total
    assert max(counts) - min(counts) <= 1


def test_a_random_submodel_holds_every_segment_equally_often() -> None:
    """Marginal inclusion is the rate, heads with a remainder included: 5 of 16 heads, 10 of 40 units."""
    budget = cut(VIT, 0.3125, ratio=0.0)
    assert (budget.heads, budget.units) == (5, 12)
    draws = 1500
    heads, units = torch.zeros(VIT.depth, VIT.groups), torch.zeros(VIT.depth, VIT.mlp)
    for i in range(draws):
        for block, keep in enumerate(random_spec(VIT, budget, torch_rng(i, "test")).window):
            heads[block, list(keep.heads)] += 1
            units[block, list(keep.units)] += 1
    sigma = (0.3125 * (1 - 0.3125) / draws) ** 0.5
    assert (heads / draws - 5 / 16).abs().max() < 5 * sigma
    assert (units / draws - 12 / 40).abs().max() < 5 * sigma
