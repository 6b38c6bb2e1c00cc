from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cos2p.data.select import largest_remainder, split_off, stratified
from cos2p.seeding import numpy_rng


@given(st.integers(0, 10_000), st.lists(st.floats(0.01, 100.0), min_size=1, max_size=30))
def test_shares_are_whole_sum_up_and_are_within_one(total: int, weights: list[float]) -> None:
    array = np.array(weights)

    shares = largest_remainder(total, array)

    assert shares.sum() == total
    assert np.all(np.abs(shares - total * array / array.sum()) <= 1 + 1e-6)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=200), st.integers(0, 250), st.integers(0, 5))
def test_a_stratified_subset_keeps_the_proportions(strata: list[int], count: int, seed: int) -> None:
    array = np.array(strata)

    chosen = stratified(array, count, numpy_rng(seed, "test"))

    assert len(chosen) == min(count, len(array))
    assert np.all(np.diff(chosen) > 0)
    share = len(chosen) / len(array)
    for value in np.unique(array):
        assert abs((array[chosen] == value).sum() - share * (array == value).sum()) <= 1 + 1e-6


def test_ten_of_a_hundred_balanced_samples_are_one_of_each_class() -> None:
    labels = np.repeat(np.arange(10), 10)

    chosen = stratified(labels, 10, numpy_rng(0, "test"))

    assert labels[chosen].tolist() == list(range(10))


def test_every_sample_is_as_likely_as_any_other_of_its_class() -> None:
    labels = np.array([0] * 5 + [1] * 5)

    draws = np.concatenate([stratified(labels, 4, numpy_rng(seed, "test")) for seed in range(2000)])

    # Each sample is in 2 of 5, i.e. 800 of 2,000 draws; the deviation of that count is about 22.
    assert np.bincount(draws) == pytest.approx(np.full(10, 800), abs=110)


def test_ties_do_not_always_go_to_the_first_class() -> None:
    labels = np.arange(4)

    seen = {int(stratified(labels, 1, numpy_rng(seed, "test"))[0]) for seed in range(60)}

    assert seen == {0, 1, 2, 3}


def test_a_split_is_the_whole_in_two_parts() -> None:
    labels = np.repeat([0, 1], [30, 10])

    rest, taken = split_off(labels, 8, numpy_rng(0, "test"))

    assert np.bincount(labels[taken]).tolist() == [6, 2]
    assert sorted([*rest.tolist(), *taken.tolist()]) == list(range(40))
