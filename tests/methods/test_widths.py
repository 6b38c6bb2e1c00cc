from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from cos2p import model
from cos2p.messages import Update
from cos2p.methods.widths import (
    best_first,
    by_block,
    even_order,
    expected_tasks,
    random_spec,
    rolling,
    spread_at_random,
    width_budget,
    width_spec,
)
from cos2p.seeding import torch_rng
from cos2p_rivals.segment_reports import reported
from tests.tiny import VIT, context


def test_the_papers_smallest_tier_has_fewer_heads_than_blocks() -> None:
    assert (width_budget(model("vit-tiny"), 1 / 16).heads, model("vit-tiny").depth) == (4, 8)
    assert (width_budget(model("vit-base-ext"), 1 / 64).heads, model("vit-base-ext").depth) == (3, 16)


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
    budget = width_budget(VIT, 0.3125)
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


@given(st.integers(1, 6), st.integers(1, 8), st.integers(0, 48), st.booleans())
def test_every_beginning_of_the_even_order_is_spread_evenly(blocks: int, segments: int, count: int, mix: bool) -> None:
    order = even_order(blocks, segments, torch_rng(0, "test") if mix else None)
    assert sorted(order) == list(range(blocks * segments))
    counts = [len(kept) for kept in by_block(order[:count], blocks, segments)]
    assert max(counts) - min(counts) <= 1


def test_best_first_puts_untried_segments_first_and_breaks_ties_by_the_order() -> None:
    scores = torch.tensor([0.5, torch.inf, 0.5, 2.0, torch.inf])
    assert best_first(scores, [4, 2, 1, 0, 3]) == [4, 1, 3, 2, 0]


def test_reports_are_numbered_through_all_blocks() -> None:
    spec = width_spec([[0, 2], [1], [], [3]], [[], [5], [0, 1], [9]])
    extras = {
        "heads.0": torch.tensor([1.0, 2.0]),
        "heads.3": torch.tensor([4.0]),
        "units.2": torch.tensor([7.0, 8.0]),
    }
    update = Update("pi", "pi#0", 0, spec, {}, 1, extras=extras)
    numbers, values = reported(update, VIT, "heads")
    assert (numbers.tolist(), values.tolist()) == ([0, 2, 15], [1.0, 2.0, 4.0])
    numbers, values = reported(update, VIT, "units")
    assert (numbers.tolist(), values.tolist()) == ([20, 21], [7.0, 8.0])


def test_expected_tasks_follow_whichever_end_comes_first() -> None:
    assert expected_tasks(context(rates=(0.5, 0.5), rounds=12)) == 12
    assert expected_tasks(context(rates=(0.5, 0.5), rounds=12), "one") == 6
    assert expected_tasks(context(rates=(0.5, 0.5), rounds=12, updates=10)) == 5
