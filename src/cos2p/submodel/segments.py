"""Sums over segments, as vectors: one number for each head, each unit, and each shared tensor.

A head's number gathers its rows of q, k, v and its columns of o; a unit's its row of fc1 (and gate) and its column of
fc2. Every shared tensor (norms, biases of o and fc2, embeddings, exits) is one segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from cos2p.models.config import ModelConfig
from cos2p.models.layout import Axis, layout, segment_width
from cos2p.models.spec import SubmodelSpec
from cos2p.submodel.kernels import Scratch, absolute_differences, absolute_sums
from cos2p.submodel.slicing import Slice

SegmentValues = dict[str, Tensor]
"""`heads.3` and `units.3`: a vector over the kept segments of block 3; `rows.embed.tokens`: over the rows a device has;
any other name: a scalar for that tensor."""


def segment_key(config: ModelConfig, name: str) -> str:
    """Which vector of segments a tensor belongs to."""
    cut = layout(config)[name].cut
    if cut is None:
        return name
    if cut[1] is Axis.ROW:
        return f"rows.{name}"
    block = name.split(".")[1]
    return f"units.{block}" if cut[1] is Axis.UNIT else f"heads.{block}"


def segment_norms(tensors: Mapping[str, Tensor], config: ModelConfig, scratch: Scratch | None = None) -> SegmentValues:
    """‖·‖₁ of every segment of a compact submodel."""
    room = scratch or Scratch()
    entries = {name: absolute_sums(tensor, _cut_dim(config, name), room) for name, tensor in tensors.items()}
    return _by_segment(entries, config)


def segment_squares(tensors: Mapping[str, Tensor], config: ModelConfig) -> SegmentValues:
    """Σx² of every segment of a compact submodel."""
    entries: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        dim, squares = _cut_dim(config, name), tensor.square()
        if dim is None:
            entries[name] = squares.sum()
        else:
            entries[name] = squares.sum(1 - dim) if squares.ndim == 2 else squares
    return _by_segment(entries, config)


def segment_drift(
    now: Mapping[str, Tensor],
    then: Mapping[str, Tensor],
    slices: Mapping[str, Slice | None],
    config: ModelConfig,
    scratch: Scratch | None = None,
) -> SegmentValues:
    """‖now − then‖₁ of every segment that `slices` cuts out of two full models."""
    room, entries = scratch or Scratch(), {}
    for name, cut in slices.items():
        whole = absolute_differences(now[name], then[name], _cut_dim(config, name), room)
        entries[name] = whole if cut is None else whole[cut[1]]
    return _by_segment(entries, config)


def _cut_dim(config: ModelConfig, name: str) -> int | None:
    cut = layout(config)[name].cut
    return None if cut is None else cut[0]


def _by_segment(entries: Mapping[str, Tensor], config: ModelConfig) -> SegmentValues:
    """Add up what belongs to one segment: the entries of a head's rows, and the tensors of a block."""
    sums: SegmentValues = {}
    for name, value in sorted(entries.items()):  # rounding must not depend on the order in which tensors came
        cut = layout(config)[name].cut
        if cut is not None and (width := segment_width(config, cut[1])) > 1:
            value = value.view(-1, width).sum(-1)
        key = segment_key(config, name)
        sums[key] = sums[key] + value if key in sums else value
    return sums


def segment_sizes(names: Mapping[str, Tensor], config: ModelConfig) -> dict[str, int]:
    """Scalars of one segment of each kind, over the tensors given."""
    sizes: dict[str, int] = {}
    for name in names:
        parameter = layout(config)[name]
        size = torch.Size(parameter.shape).numel()
        if parameter.cut is not None:
            dim, axis = parameter.cut
            size = size // parameter.shape[dim] * segment_width(config, axis)
        key = segment_key(config, name)
        sizes[key] = sizes.get(key, 0) + size
    return sizes


def expand(values: SegmentValues, name: str, config: ModelConfig) -> Tensor:
    """The segments' numbers in a shape that multiplies the (compact or full) tensor `name`."""
    value = values[segment_key(config, name)]
    cut = layout(config)[name].cut
    if cut is None:
        return value
    dim, axis = cut
    width = segment_width(config, axis)
    entries = value.repeat_interleave(width) if width > 1 else value
    return entries if len(layout(config)[name].shape) == 1 else entries.unsqueeze(1 - dim)


def full_length(config: ModelConfig, key: str) -> int | None:
    """Length of a segment vector over the full model; None for a shared tensor's scalar."""
    if key.startswith("heads."):
        return config.groups
    if key.startswith("units."):
        return config.mlp
    if key.startswith("rows."):
        return config.vocab
    return None


def segment_positions(config: ModelConfig, spec: SubmodelSpec, key: str) -> Tensor | None:
    """Where a compact segment vector sits in the full one; None for a scalar."""
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
    for key in dict.fromkeys(segment_key(config, name) for name in names):
        positions = segment_positions(config, spec, key)
        ones[key] = torch.ones(()) if positions is None else torch.ones(len(positions))
    return ones


def add_at_segments(into: SegmentValues, values: SegmentValues, config: ModelConfig, spec: SubmodelSpec) -> None:
    """Add a submodel's numbers to those of the full model, in place."""
    for key, value in values.items():
        positions, length = segment_positions(config, spec, key), full_length(config, key)
        if positions is None or length is None:
            into[key] = into[key] + value if key in into else value.clone()
        else:
            into.setdefault(key, torch.zeros(length)).index_add_(0, positions, value)
