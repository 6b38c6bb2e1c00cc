from __future__ import annotations

from itertools import chain, combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cos2p_rivals.prunefl.reconfiguration import fill_unknown, reconfigure, worth_their_time

numbers = st.lists(st.floats(0.01, 10.0), min_size=10, max_size=10).map(torch.tensor)


def test_by_hand() -> None:
    """Of 0, 1, 2, 3 the weakest half by magnitude (2 and 3) may go; 4 has the best score, then 3 itself."""
    score = torch.tensor([0.0, 0.0, 1.0, 5.0, 9.0, 2.0])
    magnitude = torch.tensor([4.0, 3.0, 2.0, 1.0, 0.0, 0.0])
    assert reconfigure([4], {4: [0, 1, 2, 3]}, score, magnitude, turnover=0.5) == {4: [0, 1, 4, 3]}


def test_without_old_sets_the_best_by_score_are_taken() -> None:
    assert reconfigure([1, 3], None, torch.tensor([1.0, 4.0, 3.0, 4.0]), torch.ones(4), 0.3) == {1: [1], 3: [1, 3, 2]}


@given(numbers, numbers, st.floats(0.0, 1.0), st.permutations(range(10)), st.sets(st.integers(0, 10), min_size=1))
def test_sets_are_nested_complete_and_turn_over_no_more_than_allowed(
    score: torch.Tensor, magnitude: torch.Tensor, turnover: float, old: list[int], sizes: set[int]
) -> None:
    before = {size: old[:size] for size in sizes}
    after = reconfigure(sizes, before, score, magnitude, turnover)
    inner: set[int] = set()
    for size in sorted(sizes):
        chosen = set(after[size])
        assert len(after[size]) == len(chosen) == size
        assert inner <= chosen
        assert len(chosen - set(before[size])) <= turnover * size + 1e-6
        inner = chosen


@given(numbers, numbers, st.sets(st.integers(0, 9)), st.floats(0.1, 20.0))
def test_greedy_finds_the_best_gain_per_time_of_all(
    gain: torch.Tensor, time: torch.Tensor, kept: set[int], constant: float
) -> None:
    def rate(chosen: tuple[int, ...]) -> float:
        inside = [*kept, *chosen]
        return float(gain[inside].double().sum() / (constant + time[inside].double().sum()))

    others = sorted(set(range(10)) - kept)
    subsets = chain.from_iterable(combinations(others, size) for size in range(len(others) + 1))
    greedy = worth_their_time(gain, time, kept, constant)
    assert not set(greedy) & kept
    assert rate(tuple(greedy)) == pytest.approx(max(map(rate, subsets)), rel=1e-6)


def test_equal_times_order_by_gain() -> None:
    gain = torch.tensor([3.0, 1.0, 2.0])
    assert worth_their_time(gain, torch.full((3,), 2.0), [], constant=100.0) == [0, 2, 1]


def test_unknown_takes_its_blocks_median_or_everybodys() -> None:
    nan = torch.nan
    estimate = torch.tensor([1.0, 3.0, nan, nan, nan, nan])
    assert fill_unknown(estimate, 3).tolist() == [1, 3, 1, 1, 1, 1]  # torch's median of two is the lower
    assert fill_unknown(torch.full((4,), nan), 2).tolist() == [0, 0, 0, 0]
