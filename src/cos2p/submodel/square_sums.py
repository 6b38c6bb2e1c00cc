"""Σx² of every segment of an update, and the norm of every tensor, in as few passes as its tensors allow.

Blocks are alike: of tensors in one piece those of all blocks are summed at once, and where there are passes in C all of
them in one call, with the results of one by one, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from cos2p.models.config import ModelConfig
from cos2p.models.flat_tensors import Family, FlatLayout, FlatTensors
from cos2p.submodel import native
from cos2p.submodel.kernels import SCRATCH, Scratch, square_sums
from cos2p.submodel.native.passes import Table
from cos2p.submodel.segments import Segmented, by_segment, segment_sizes, segmented


@dataclass(frozen=True)
class Vectors:
    """Some vectors of segments that are equally long and of one size."""

    keys: tuple[str, ...]
    segments: int
    """Of each."""
    size: int
    """Scalars of one segment."""

    @property
    def numbers(self) -> int:
        return len(self.keys) * self.segments


@dataclass(frozen=True, eq=False)
class Squares:
    """Σx² of segments, all in a row."""

    of: tuple[Vectors, ...]
    values: Tensor

    def parts(self) -> list[Tensor]:
        """By vectors: (keys, segments)."""
        split = self.values.split([own.numbers for own in self.of])
        return [part.view(len(own.keys), own.segments) for own, part in zip(self.of, split, strict=True)]


def segment_squares(tensors: Mapping[str, Tensor], config: ModelConfig, scratch: Scratch) -> Squares:
    """Of a compact submodel's tensors."""
    if isinstance(tensors, FlatTensors):
        plan = _plan(config, tensors.arranged)
        if plan is not None:
            return Squares(plan.of, _all_at_once(plan, tensors.memory))
    table = segmented(config)
    entries = {name: square_sums(tensor, table[name].dim, scratch) for name, tensor in tensors.items()}
    sizes = segment_sizes(tensors, config)
    found = by_segment(entries, config)
    return Squares(
        tuple(Vectors((key,), values.numel(), sizes[key]) for key, values in found.items()),
        torch.cat([values.view(-1) for values in found.values()]) if found else torch.empty(0),
    )


@dataclass(frozen=True, eq=False)
class _Plan:
    of: tuple[Vectors, ...]
    members: tuple[tuple[tuple[Family, Segmented], ...], ...]
    """What is added up for each of them."""
    table: Table


@lru_cache(maxsize=64)
def _plan(config: ModelConfig, arranged: FlatLayout) -> _Plan | None:
    """None if the blocks are not alike, or tensors are so large that they are summed in pieces."""
    table = segmented(config)
    parts: dict[tuple[str, ...], list[tuple[Family, Segmented]]] = {}
    for family in arranged.families:  # sorted by name, as are the tensors of a block
        places = [table[name] for name in family.names]
        if family.length > SCRATCH:
            return None
        parts.setdefault(tuple(place.key for place in places), []).append((family, places[0]))
    keys = [key for own in parts for key in own]
    if len(keys) != len(set(keys)):
        return None
    of = tuple(
        Vectors(own, _segments(*members[0]), sum(place.size for _, place in members)) for own, members in parts.items()
    )
    plan = tuple(tuple(members) for members in parts.values())
    return _Plan(of, plan, _table(of, plan, arranged))


def _segments(family: Family, place: Segmented) -> int:
    return 1 if place.dim is None else family.shape[place.dim] // place.width


def _all_at_once(plan: _Plan, memory: Tensor) -> Tensor:
    passes = native.in_use()
    found = passes.segment_squares(memory, plan.table) if passes is not None else None
    return found if found is not None else _together(plan, memory)


def _together(plan: _Plan, memory: Tensor) -> Tensor:
    squares = memory.square()
    found = []
    for members in plan.members:
        total: Tensor | None = None
        for family, place in members:
            values = _sums(family, place, squares)
            total = values if total is None else total + values
        assert total is not None
        found.append(total.flatten())
    return torch.cat(found) if found else torch.empty(0)


def _sums(family: Family, place: Segmented, squares: Tensor) -> Tensor:
    """One number for each segment of each tensor of the family."""
    if place.dim is None:
        return family.rows(squares).sum(1, keepdim=True)
    values = family.of(squares)
    if values.ndim == 3:
        values = values.sum(2 - place.dim)
    return values.view(len(family.names), -1, place.width).sum(-1) if place.width > 1 else values


# ---------------------------------------------------------------- for C

_WHOLE, _ROWS, _COLUMNS, _SINGLE = range(4)


def _table(
    of: tuple[Vectors, ...], plan: tuple[tuple[tuple[Family, Segmented], ...], ...], arranged: FlatLayout
) -> Table:
    rows, to = [], 0
    for own, members in zip(of, plan, strict=True):
        for number, (family, place) in enumerate(members):
            along, height, width = _WHOLE, 1, family.length
            if place.dim is not None:
                matrix = len(family.shape) == 2
                along = _SINGLE if not matrix else _COLUMNS if place.dim else _ROWS
                height, width = (family.shape[0], family.shape[1]) if matrix else (family.length, 1)
            rows.append([*family.place, along, height, width, place.width, to, number == 0])
        to += own.numbers
    return Table(torch.tensor(rows, dtype=torch.int64).view(-1, 9), to, arranged.scalars)


@lru_cache(maxsize=64)
def _norm_table(arranged: FlatLayout) -> Table:
    rows = [[*family.place, family.length] for family in arranged.families]
    return Table(torch.tensor(rows, dtype=torch.int64).view(-1, 4), len(arranged.shapes), arranged.scalars)


def norms(tensors: FlatTensors) -> Tensor:
    """‖x‖₂ of every tensor, family by family."""
    passes = native.in_use()
    found = passes.norms(tensors.memory, _norm_table(tensors.arranged)) if passes is not None else None
    if found is not None:
        return found
    families = [family.rows(tensors.memory) for family in tensors.arranged.families]
    return torch.cat([torch.linalg.vector_norm(rows, dim=1) for rows in families]) if families else torch.empty(0)
