"""Passes over large tensors in C, where they were built at installation: the bits are torch's, with or without.

`in_use` has them, or None: `submodel.kernels` then does everything with torch. The environment's COS2P_NATIVE=0 says so
too. Before they are used they are tried once on a few numbers; what torch rounds or adds up otherwise on this machine
is left to torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from cos2p.seeding import torch_rng
from cos2p.submodel.native.passes import Passes, load

_chosen: list[Passes | None] = [None] if os.environ.get("COS2P_NATIVE") == "0" else []
"""The last one counts; if there is none, what was found."""


def in_use() -> Passes | None:
    """None if everything is torch's to do."""
    return _chosen[-1] if _chosen else found()


@contextmanager
def using(passes: Passes | None) -> Iterator[None]:
    """For comparisons: these for a while, or none, whatever the environment says."""
    _chosen.append(passes)
    try:
        yield
    finally:
        _chosen.pop()


@cache
def found() -> Passes | None:
    """The library that was built, as far as it is to be trusted here."""
    library = load()
    return None if library is None else trusted(Passes(library, expand=bool(library.cos2p_has_expand())))


def trusted(passes: Passes) -> Passes:
    """With what comes out as torch's, bit for bit, on a few numbers."""
    return replace(
        passes,
        adds=all(_adds_alike(passes, dim, worth) for dim in (0, 1) for worth in (1, 2))
        and all(_steps_alike(passes, dim) for dim in (0, 1)),
        sums=all(_sums_alike(passes, shape) for shape in ((2, 1000), (70, 77), (9, 300))),
    )


def _numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch_rng(0, "native", *shape))


def _adds_alike(passes: Passes, dim: int, worth: int) -> bool:
    total, index = _numbers(40, 40), torch.arange(0, 40, 3)
    part, factor = _numbers(40, 40).mul_(3).index_select(dim, index), _numbers(14).unsqueeze(1 - dim)
    if worth == 1:  # every entry is a run of one
        expected = total.index_copy(dim, index, torch.addcmul(total.index_select(dim, index), part, factor))
    else:
        expected = total.index_add(dim, index, part * factor)
    return passes.add_part(total, part, factor, dim, index, worth=worth, first=False) and torch.equal(total, expected)


def _steps_alike(passes: Passes, dim: int) -> bool:
    total, current, inverse = _numbers(40, 40), _numbers(40, 41)[:, 1:].contiguous(), _numbers(40).unsqueeze(1 - dim)
    expected = torch.addcmul(current, total, inverse, value=-1)
    return passes.step(total, current, inverse, dim, piece=40) is not None and torch.equal(total, expected)


def _sums_alike(passes: Passes, shape: tuple[int, int]) -> bool:
    a = _numbers(*shape)
    rows, columns = passes.row_sums(a), passes.column_sums(a, piece=shape[0])
    if rows is None or columns is None:
        return False
    return torch.equal(rows, a.abs().sum(1)) and torch.equal(columns, a.abs().sum(0))
