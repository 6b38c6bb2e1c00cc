"""Sums over segments, as vectors: one number for each head, each unit, and each shared tensor.

A head's number gathers its rows of q, k, v and its columns of o; a unit's its row of fc1 (and gate) and its column of
fc2. Every shared tensor (norms, biases of o and fc2, embeddings, exits) is one segment.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import torch
from torch import Tensor

from cos2p.models.config import ModelConfig
from cos2p.models.layout import Axis, layout, segment_width
from cos2p.models.spec import SubmodelSpec
from cos2p.submodel.kernels import Scratch, absolute_sums
from cos2p.submodel.slicing import Slice

SegmentValues = dict[str, Tensor]
"""`heads.3` and `units.3`: a vector over the kept segments of block 3; `rows.embed.tokens`: over the rows a device has;
any other name: a scalar for that tensor."""


@dataclass(frozen=True)
class Segmented:
    """How a tensor is divided into segments."""

    key: str
    """Which vector of segments it belongs to."""
    dim: int | None
    """The axis along which they lie; None: it is one segment."""
    width: int
    """Entries along that axis that belong to one."""
    axes: int
    size: int
    """Scalars of one segment."""


@lru_cache(maxsize=64)
def segmented(config: ModelConfig) -> Mapping[str, Segmented]:
    """Every tensor of the full model."""
    found: dict[str, Segmented] = {}
    for name, parameter in layout(config).items():
        cut, size = parameter.cut, math.prod(parameter.shape)
        if cut is None:
            found[name] = Segmented(name, None, 1, len(parameter.shape), size)
            continue
        dim, axis = cut
        width = segment_width(config, axis)
        size = size // parameter.shape[dim] * width
        found[name] = Segmented(_key(name, axis), dim, width, len(parameter.shape), size)
    return MappingProxyType(found)


def _key(name: str, axis: Axis) -> str:
    if axis is Axis.ROW:
        return f"rows.{name}"
    block = name.split(".")[1]
    return f"units.{block}" if axis is Axis.UNIT else f"heads.{block}"


def segment_key(config: ModelConfig, name: str) -> str:
    """Which vector of segments a tensor belongs to."""
    return segmented(config)[name].key


def segment_norms(tensors: Mapping[str, Tensor], config: ModelConfig, scratch: Scratch | None = None) -> SegmentValues:
    """‖·‖₁ of every segment of a compact submodel."""
    room, table = scratch or Scratch(), segmented(config)
    entries = {name: absolute_sums(tensor, table[name].dim, room) for name, tensor in tensors.items()}
    return by_segment(entries, config)


def segment_drift(
    now: Mapping[str, Tensor],
    then: Mapping[str, Tensor],
    slices: Mapping[str, Slice | None],
    config: ModelConfig,
    scratch: Scratch | None = None,
) -> SegmentValues:
    """‖now − then‖₁ of every segment that `slices` cuts out of two full models."""
    room, entries, table = scratch or Scratch(), {}, segmented(config)
    for name, cut in slices.items():
        index = None if cut is None else cut[1]
        entries[name] = room.differences(now[name], then[name], table[name].dim, index)
    return by_segment(entries, config)


def by_segment(entries: Mapping[str, Tensor], config: ModelConfig) -> SegmentValues:
    """Add up what belongs to one segment: the entries of a head's rows, and the tensors of a block."""
    sums: SegmentValues = {}
    table = segmented(config)
    for name in sorted(entries):  # rounding must not depend on the order in which tensors came
        place, value = table[name], entries[name]
        if place.width > 1:
            value = value.view(-1, place.width).sum(-1)
        sums[place.key] = sums[place.key] + value if place.key in sums else value
    return sums


def segment_sizes(names: Mapping[str, Tensor], config: ModelConfig) -> dict[str, int]:
    """Scalars of one segment of each kind, over the tensors given."""
    sizes: dict[str, int] = {}
    table = segmented(config)
    for name in names:
        place = table[name]
        sizes[place.key] = sizes.get(place.key, 0) + place.size
    return sizes


Repeated = dict[tuple[str, int], Tensor]
"""Numbers of a vector of segments, each as often as a segment has entries."""


def expand(values: SegmentValues, name: str, config: ModelConfig, known: Repeated | None = None) -> Tensor:
    """The segments' numbers in a shape that multiplies the (compact or full) tensor `name`.

    Most tensors of a block need the same ones: `known`, empty at first, keeps them from one call to the next.
    """
    place = segmented(config)[name]
    value = values[place.key]
    if place.dim is None:
        return value
    if place.width > 1:
        known = {} if known is None else known
        if (place.key, place.width) not in known:
            known[place.key, place.width] = value.repeat_interleave(place.width)
        value = known[place.key, place.width]
    return value if place.axes == 1 else value.unsqueeze(1 - place.dim)


def full_length(config: ModelConfig, key: str) -> int | None:
    """Length of a segment vector over the full model; None for a shared tensor's scalar."""
    if key.startswith("heads."):
        return config.groups
    if key.startswith("units."):
        return config.mlp
    if key.startswith("rows."):
        return config.vocab
    return None


@lru_cache(maxsize=2048)
def segment_positions(config: ModelConfig, spec: SubmodelSpec, key: str) -> Tensor | None:
    """Where a compact segment vector sits in the full one; None for a scalar. Not to be changed."""
    kind, _, block = key.partition(".")
    if kind == "rows":
        return torch.arange(config.vocab) if spec.rows is None else torch.tensor(spec.rows, dtype=torch.int64)
    if kind not in ("heads", "units"):
        return None
    keep = spec.keep(int(block))
    return torch.tensor(keep.heads if kind == "heads" else keep.units, dtype=torch.int64)


def held_segments(config: ModelConfig, spec: SubmodelSpec, names: Iterable[str]) -> SegmentValues:
    """A one for every segment of the tensors `names`, as far as the spec keeps it."""
    ones: SegmentValues = {}
    table = segmented(config)
    for key in dict.fromkeys(table[name].key for name in names):
        positions = segment_positions(config, spec, key)
        ones[key] = torch.ones(()) if positions is None else torch.ones(len(positions))
    return ones


def add_at_segments(into: SegmentValues, values: SegmentValues, config: ModelConfig, spec: SubmodelSpec) -> None:
    """Add a submodel's numbers to those of the full model, in place."""
    for key, value in values.items():
        positions, length = segment_positions(config, spec, key), full_length(config, key)
        if positions is None or length is None:
            into[key] = into[key] + value if key in into else value.clone()
        elif len(positions) == length:  # all of them, in their order
            into.setdefault(key, torch.zeros(length)).add_(value)
        else:
            into.setdefault(key, torch.zeros(length)).index_add_(0, positions, value)
