"""Passes over large tensors in pieces that stay in the processor's cache.

Merging is bound by memory, not by arithmetic: a temporary as large as the update costs more than all its sums (every
page of it has to be fetched first). So intermediate values live in a small scratch tensor, and an update is read
twice in all: once for its norms, once to be added.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from cos2p.submodel.slicing import Slice

SCRATCH = 64 * 1024
"""Scalars of the scratch tensor: a quarter of a MiB, which leaves room for the data in any second-level cache."""

_WORTH_A_RUN = 16
"""From this many consecutive entries on, a run is added faster on its own than by index."""


def new_scratch() -> Tensor:
    return torch.empty(SCRATCH)


def absolute_sums(tensor: Tensor, dim: int | None, scratch: Tensor) -> Tensor:
    """Σ|x| for each entry along `dim` of a vector or matrix; of everything if `dim` is None."""
    pieces = (torch.abs(part, out=_room(scratch, part)) for part in _parts(tensor, dim, scratch))
    return _sum_pieces(pieces, tensor, dim)


def absolute_differences(a: Tensor, b: Tensor, cut: Slice | None, dim: int | None, scratch: Tensor) -> Tensor:
    """Σ|a − b| for each entry kept by `cut` along `dim`, or for each entry if nothing is cut."""
    if cut is not None and cut[0] == 0:
        rows = _rows(a, scratch)
        pieces = ((a.index_select(0, i) - b.index_select(0, i)).abs_() for i in cut[1].split(rows))
        return _sum_pieces(pieces, a, dim)
    pairs = zip(_parts(a, dim, scratch), _parts(b, dim, scratch), strict=True)
    sums = _sum_pieces((torch.sub(x, y, out=_room(scratch, x)).abs_() for x, y in pairs), a, dim)
    return sums if cut is None else sums[cut[1]]


def add_scaled(total: Tensor, part: Tensor, factor: Tensor, cut: Slice | None, scratch: Tensor) -> None:
    """total[kept] += part · factor, in place; `factor` has one entry for each along the cut axis, or one in all."""
    if cut is None:
        total.addcmul_(part, factor)
        return
    dim, index = cut
    if part.ndim == 1:
        total.index_add_(0, index, part * factor)
    elif runs := _long_runs(index):
        for start, here, length in runs:
            own = part.narrow(dim, here, length)
            total.narrow(dim, start, length).addcmul_(own, factor.narrow(dim, here, length))
    elif dim == 0:
        rows = _rows(part, scratch)
        for i, x, scale in zip(index.split(rows), part.split(rows), factor.split(rows), strict=True):
            total.index_add_(0, i, torch.mul(x, scale, out=_room(scratch, x)))
    elif len(index):
        rows = _rows(part, scratch)
        for row, x in zip(total.split(rows), part.split(rows), strict=True):
            row.scatter_add_(1, index.expand(len(x), -1), torch.mul(x, factor, out=_room(scratch, x)))


def _long_runs(index: Tensor) -> list[tuple[int, int, int]]:
    """Consecutive entries of an ascending index as (first value, its place, how many); nothing if they are short."""
    breaks = torch.nonzero(index.diff() != 1).flatten() + 1
    if (len(breaks) + 1) * _WORTH_A_RUN > len(index):
        return []
    places = [0, *breaks.tolist()]
    firsts = index[places].tolist()
    return [(first, a, b - a) for first, a, b in zip(firsts, places, [*places[1:], len(index)], strict=True)]


def _room(scratch: Tensor, like: Tensor) -> Tensor:
    """The scratch tensor in the shape of a piece; a single row that is too long gets a tensor of its own."""
    if like.numel() > scratch.numel():
        return torch.empty_like(like)
    return scratch[: like.numel()].view(like.shape)


def _rows(matrix: Tensor, scratch: Tensor) -> int:
    """How many rows (of a vector: entries) fit the scratch tensor; at least one."""
    return max(1, scratch.numel() // max(1, matrix.shape[1] if matrix.ndim == 2 else 1))


def _parts(tensor: Tensor, dim: int | None, scratch: Tensor) -> Iterator[Tensor]:
    """Pieces for `_sum_pieces`: flat if everything is summed, else whole rows."""
    if dim is None:
        yield from tensor.flatten().split(scratch.numel())
    else:
        matrix = tensor if tensor.ndim == 2 else tensor[:, None]
        yield from matrix.split(_rows(matrix, scratch))


def _sum_pieces(pieces: Iterator[Tensor], of: Tensor, dim: int | None) -> Tensor:
    if dim is None:
        return torch.stack([piece.sum() for piece in pieces]).sum()
    if dim == 0:
        return torch.cat([piece.sum(1) if piece.ndim == 2 else piece.clone() for piece in pieces])
    total = torch.zeros(of.shape[1])
    for piece in pieces:
        total += piece.sum(0)
    return total
