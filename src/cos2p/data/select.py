"""Which samples: subsets and splits that keep the classes in proportion, and groups of samples with one owner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, eq=False)
class Groups:
    """The owner of each sample (a writer, a speaker): a number for each sample, a name for each number.

    Reads like a sequence of names, one for each sample, but is cheap to cut up for thousands of owners."""

    codes: IntArray
    names: tuple[str, ...]
    """In the order of the alphabet, so that equal names have equal places however the samples came."""

    @classmethod
    def of(cls, names: Sequence[str] | Groups) -> Groups:
        if isinstance(names, Groups):
            return names
        known, codes = np.unique(np.asarray(names, dtype=np.str_), return_inverse=True)
        return cls(codes.astype(np.int64), tuple(known.tolist()))

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, sample: int) -> str:
        return self.names[int(self.codes[sample])]

    def __iter__(self) -> Iterator[str]:
        return (self.names[code] for code in self.codes.tolist())

    def subset(self, rows: IntArray) -> Groups:
        """Those of these samples; names are kept, also of groups that are not among them."""
        return Groups(self.codes[rows], self.names)
