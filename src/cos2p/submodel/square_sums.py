"""Σx² of every segment of an update, in as few passes as its tensors allow.

Blocks are alike: of tensors in one piece those of all blocks are summed at once, with the results of one by one, bit
for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from cos2p.models.config import ModelConfig
from cos2p.models.one_piece import Arrangement, Family, OnePiece
from cos2p.submodel.kernels import SCRATCH, Scratch, square_sums
from cos2p.submodel.segments import Segmented, by_segment, segment_sizes, segmented


@dataclass(frozen=True, eq=False)
class Squares:
    """Of some vectors of segments that are equally long and of one size."""

    keys: tuple[str, ...]
    values: Tensor
    """(keys, segments)"""
    size: int
    """Scalars of one segment."""


def segment_squares(tensors: Mapping[str, Tensor], config: ModelConfig, scratch: Scratch) -> list[Squares]:
    """Of a compact submodel's tensors."""
    if isinstance(tensors, OnePiece):
        plan = _plan(config, tensors.arranged)
        if plan is not None:
            return _together(plan, tensors.memory)
    table = segmented(config)
    entries = {name: square_sums(tensor, table[name].dim, scratch) for name, tensor in tensors.items()}
    sizes = segment_sizes(tensors, config)
    return [Squares((key,), values.view(1, -1), sizes[key]) for key, values in by_segment(entries, config).items()]


_Plan = tuple[tuple[tuple[str, ...], int, tuple[tuple[Family, Segmented], ...]], ...]
"""Keys, the size of a segment, and what is added up for them."""


@lru_cache(maxsize=64)
def _plan(config: ModelConfig, arranged: Arrangement) -> _Plan | None:
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
    return tuple((own, sum(place.size for _, place in members), tuple(members)) for own, members in parts.items())


def _together(plan: _Plan, memory: Tensor) -> list[Squares]:
    squares = memory.square()
    found = []
    for keys, size, members in plan:
        total: Tensor | None = None
        for family, place in members:
            values = _sums(family, place, squares)
            total = values if total is None else total + values
        assert total is not None
        found.append(Squares(keys, total, size))
    return found


def _sums(family: Family, place: Segmented, squares: Tensor) -> Tensor:
    """One number for each segment of each tensor of the family."""
    if place.dim is None:
        return family.rows(squares).sum(1, keepdim=True)
    values = family.of(squares)
    if values.ndim == 3:
        values = values.sum(2 - place.dim)
    return values.view(len(family.names), -1, place.width).sum(-1) if place.width > 1 else values


def flat(squares: list[Squares]) -> Tensor:
    """All numbers in a row."""
    return torch.cat([own.values.flatten() for own in squares])
