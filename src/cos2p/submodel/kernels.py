"""Passes over large tensors, as few and as short as they can be: merging is bound by memory, not by arithmetic.

Sums are taken in pieces that stay in the processor's cache, so that intermediate values never travel to memory and
back; what is whole, or lies in long runs, is scaled and added in one go. Only scattered entries need an index, and the
memory for what is put there is kept from one update to the next: fresh pages cost more than the arithmetic on them.

What `submodel.native` has in C it does in fewer passes, with the same bits; everything below works without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from weakref import ref

import torch
from torch import Tensor

from cos2p.submodel import native
from cos2p.submodel.slicing import Slice

SCRATCH = 128 * 1024
"""Scalars of a piece: half a MiB, which a second-level cache holds next to the data."""

ROWS = 4
"""Where rows are summed, each by itself, so many pieces at a time: fewer calls, and the sums are the same."""


Run = tuple[int, int, int]
"""Consecutive entries of an index: the first value, its place in the index, how many."""


@dataclass
class _Differences:
    """Between two versions of a tensor."""

    now: ref[Tensor]
    then: ref[Tensor]
    sums: Tensor


class Scratch:
    """Memory for intermediate values, which grows to the largest that was asked for; and what is known of indices and
    of versions of a tensor."""

    def __init__(self) -> None:
        self._memory = torch.empty(0)
        self._differences: dict[tuple[int, int, int, int], _Differences] = {}
        self._index: Tensor | None = None
        self._runs: list[Run] = []

    def like(self, tensor: Tensor) -> Tensor:
        """Room in the tensor's shape, overwritten by the next call."""
        if tensor.dtype != self._memory.dtype:
            return torch.empty_like(tensor)
        if tensor.numel() > self._memory.numel():
            self._memory = torch.empty(tensor.numel())
        return self._memory[: tensor.numel()].view(tensor.shape)

    def runs(self, index: Tensor) -> list[Run]:
        """The index as runs, none if they are short. Tensors of a block come one after the other and share theirs."""
        if index is not self._index:
            self._index, self._runs = index, _long_runs(index)
        return self._runs

    def differences(self, now: Tensor, then: Tensor, dim: int | None, index: Tensor | None = None) -> Tensor:
        """`absolute_differences`, of all entries along `dim` or of those in the index.

        Remembered: the stale updates of a round were trained from a few versions.
        """
        found = self._differences.get(_versions(now, then))
        if found is None or found.now() is not now or found.then() is not then:
            found = self.remember(now, then, absolute_differences(now, then, dim, self))
        return found.sums if index is None else found.sums.index_select(0, index)

    def remember(self, now: Tensor, then: Tensor, sums: Tensor) -> _Differences:
        """Note the sums that `differences` would find for all entries."""
        found = self._differences[_versions(now, then)] = _Differences(ref(now), ref(then), sums)
        return found

    def forget(self) -> None:
        """The model has moved on."""
        self._differences.clear()


def _versions(now: Tensor, then: Tensor) -> tuple[int, int, int, int]:
    return id(now), now._version, id(then), then._version


_WORTH_A_RUN = 16
"""From this many consecutive entries on, a run is added faster on its own than by index."""


def absolute_sums(tensor: Tensor, dim: int | None, scratch: Scratch) -> Tensor:
    """Σ|x| for each entry along `dim` of a vector or matrix; of everything if `dim` is None."""
    if (found := _native_sums(tensor, None, dim)) is not None:
        return found
    if tensor.numel() <= SCRATCH:
        return _sum(tensor.abs(), dim)
    return _sum_pieces((torch.abs(x, out=scratch.like(x)) for x in _pieces(tensor, dim)), dim)


def absolute_differences(a: Tensor, b: Tensor, dim: int | None, scratch: Scratch) -> Tensor:
    """Σ|a − b|, likewise."""
    if (found := _native_sums(a, b, dim)) is not None:
        return found
    if a.numel() <= SCRATCH:
        return _sum((a - b).abs_(), dim)
    pairs = zip(_pieces(a, dim), _pieces(b, dim), strict=True)
    return _sum_pieces((torch.sub(x, y, out=scratch.like(x)).abs_() for x, y in pairs), dim)


def _native_sums(a: Tensor, b: Tensor | None, dim: int | None) -> Tensor | None:
    own = native.in_use() if dim is not None and a.ndim == 2 else None
    if own is None:
        return None
    return own.column_sums(a, b, piece=_rows_of_piece(a, 1)) if dim else own.row_sums(a, b)


def square_sums(tensor: Tensor, dim: int | None, scratch: Scratch) -> Tensor:
    """Σx², likewise."""
    if tensor.numel() <= SCRATCH:
        return _sum(tensor.square(), dim)
    return _sum_pieces((torch.mul(x, x, out=scratch.like(x)) for x in _pieces(tensor, dim)), dim)


def _sum(values: Tensor, dim: int | None) -> Tensor:
    if dim is None:
        return values.sum()
    return values if values.ndim == 1 else values.sum(1 - dim)


def add_scaled(
    total: Tensor, part: Tensor, factor: Tensor, cut: Slice | None, scratch: Scratch, *, first: bool = False
) -> None:
    """total[kept] += part · factor, in place; `factor` has one entry for each along the cut axis, or one in all.

    With `first` this is the first to be added: `total` is taken for zeros, whatever is in it.
    """
    if cut is None:
        (total.zero_() if first else total).addcmul_(part, factor)
        return
    dim, index = cut
    passes = native.in_use()
    if passes and passes.add_part(total, part, factor, dim, index, worth=_WORTH_A_RUN, first=first):
        return
    if first:
        total.zero_()
    runs = scratch.runs(index)
    if not runs:
        total.index_add_(dim, index, torch.mul(part, factor, out=scratch.like(part)))
    for start, here, length in runs:
        own = part.narrow(dim, here, length)
        own_factor = factor.narrow(dim, here, length) if factor.ndim else factor
        total.narrow(dim, start, length).addcmul_(own, own_factor)


def step(total: Tensor, current: Tensor, inverse: Tensor, dim: int | None, look: Scratch | None) -> Tensor:
    """current − total · inverse, in the place of `total`.

    `look` remembers the differences between the two, where they are found in passing.
    """
    own = native.in_use() if look and total.ndim == 2 else None
    if own and look and dim is not None:
        way = own.step(total, current, inverse, dim, piece=_rows_of_piece(total, 1))
        if way is not None:
            look.remember(total, current, way)
            return total
    return torch.addcmul(current, total, inverse, value=-1, out=total)


def _long_runs(index: Tensor) -> list[Run]:
    breaks = torch.nonzero(index.diff() != 1).flatten() + 1
    if (len(breaks) + 1) * _WORTH_A_RUN > len(index):
        return []
    places = [0, *breaks.tolist()]
    firsts = index[places].tolist()
    return [(first, a, b - a) for first, a, b in zip(firsts, places, [*places[1:], len(index)], strict=True)]


def _pieces(tensor: Tensor, dim: int | None) -> Iterator[Tensor]:
    """Flat if everything is summed, else whole rows; a vector's entries are rows of one."""
    if dim is None:
        yield from tensor.flatten().split(SCRATCH)
    else:
        matrix = tensor if tensor.ndim == 2 else tensor[:, None]
        yield from matrix.split(_rows_of_piece(matrix, dim))


def _rows_of_piece(matrix: Tensor, dim: int) -> int:
    return max(1, SCRATCH * (ROWS if dim == 0 else 1) // max(1, matrix.shape[1]))


def _sum_pieces(pieces: Iterator[Tensor], dim: int | None) -> Tensor:
    if dim is None:
        return torch.stack([piece.sum() for piece in pieces]).sum()
    sums = [piece.sum(1 - dim) for piece in pieces]
    return torch.cat(sums) if dim == 0 else torch.stack(sums).sum(0)
