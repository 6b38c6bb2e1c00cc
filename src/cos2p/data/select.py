"""Which samples: subsets and splits that keep the classes in proportion."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


def largest_remainder(total: int, weights: NDArray[np.float64]) -> IntArray:
    """Whole numbers that sum to `total`, each within one of its exact share; ties go to the earlier one.

    >>> largest_remainder(10, np.array([1.0, 1.0, 1.0])).tolist()
    [4, 3, 3]
    """
    exact = total * weights / weights.sum()
    shares: IntArray = np.floor(exact + 1e-9).astype(np.int64)
    missing = total - int(shares.sum())
    order = np.argsort(-(exact - shares), kind="stable")
    shares[order[:missing]] += 1
    return shares


def stratified(strata: IntArray, count: int, rng: np.random.Generator) -> IntArray:
    """`count` of the samples, each stratum in proportion (to within one sample); indices ascending.

    With `count` no smaller than the number of samples, all of them.
    """
    total = len(strata)
    if count >= total:
        return np.arange(total, dtype=np.int64)
    _, codes, sizes = np.unique(strata, return_inverse=True, return_counts=True)
    # Shuffling before a stable sort by stratum puts each stratum's members in random order, side by side.
    shuffled = rng.permutation(total)
    by_stratum = shuffled[np.argsort(codes[shuffled], kind="stable")]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    rank = np.arange(total) - np.repeat(starts, sizes)
    # Ties between equal remainders are broken at random, or small strata at the end would never be drawn.
    order = rng.permutation(len(sizes))
    shares = np.empty(len(sizes), dtype=np.int64)
    shares[order] = largest_remainder(count, sizes[order].astype(np.float64))
    return np.sort(by_stratum[rank < np.repeat(shares, sizes)]).astype(np.int64)


def split_off(strata: IntArray, count: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """(the rest, `count` stratified samples): two ascending index arrays that together are all samples."""
    taken = stratified(strata, count, rng)
    rest = np.setdiff1d(np.arange(len(strata), dtype=np.int64), taken, assume_unique=True)
    return rest, taken
