"""`extract` (full weights → compact weights) and `scatter` (compact → full) as pure index operations.

One `index_select` or `index_copy` for each tensor; no loop over segments. The round trip is a bitwise identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

import torch
from torch import Tensor

from cos2p.accelerator import place
from cos2p.errors import SpecError
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Axis, Weights, exit_key, layout, segment_width
from cos2p.models.spec import BlockKeep, SubmodelSpec

Slice = tuple[int, Tensor]
"""The axis that is cut and the indices kept along it."""


def segment_index(config: ModelConfig, axis: Axis, keep: BlockKeep) -> Tensor:
    """The entries along `axis` that belong to the kept segments.

    >>> from cos2p import model_config
    >>> segment_index(model_config("vit-nano", heads=32), Axis.QUERY, BlockKeep((1, 3), ())).tolist()
    [2, 3, 6, 7]
    """
    kept = torch.tensor(keep.units if axis is Axis.UNIT else keep.heads, dtype=torch.int64)
    width = segment_width(config, axis)
    return kept if width == 1 else (kept[:, None] * width + torch.arange(width)).reshape(-1)


def _block_slices(config: ModelConfig, block: int, keep: BlockKeep) -> dict[str, Slice | None]:
    prefix, table = f"blocks.{block}.", layout(config)
    index: dict[Axis, Tensor | None] = {}
    for axis in (Axis.QUERY, Axis.KEY, Axis.UNIT):
        whole = len(keep.units) == config.mlp if axis is Axis.UNIT else len(keep.heads) == config.groups
        index[axis] = None if whole else segment_index(config, axis, keep)
    slices: dict[str, Slice | None] = {}
    for name in (n for n in table if n.startswith(prefix)):
        cut = table[name].cut
        chosen = None if cut is None else index[cut[1]]
        slices[name] = None if cut is None or chosen is None else (cut[0], chosen)
    return slices


@lru_cache(maxsize=256)
def window_slices(config: ModelConfig, spec: SubmodelSpec) -> Mapping[str, Slice | None]:
    """For every tensor a device trains: how it is cut out of the full one (None: whole)."""
    spec.check(config)
    slices: dict[str, Slice | None] = {}
    table = layout(config)
    if spec.trains_embeddings:
        slices |= _embedding_slices(config, spec)
    for block in range(spec.frozen, spec.top):
        slices |= _block_slices(config, block, spec.keep(block))
    for key in dict.fromkeys(exit_key(config, depth) + "." for depth in spec.exits):
        slices |= {name: None for name in table if name.startswith(key)}
    if "lm_head.weight" in table:
        slices["lm_head.weight"] = _row_slice(spec)
    return MappingProxyType(slices)


def _embedding_slices(config: ModelConfig, spec: SubmodelSpec) -> dict[str, Slice | None]:
    slices: dict[str, Slice | None] = {name: None for name in layout(config) if name.startswith("embed.")}
    if "embed.tokens" in slices:
        slices["embed.tokens"] = _row_slice(spec)
    return slices


def _row_slice(spec: SubmodelSpec) -> Slice | None:
    return None if spec.rows is None else (0, torch.tensor(spec.rows, dtype=torch.int64))


@lru_cache(maxsize=256)
def frozen_slices(config: ModelConfig, spec: SubmodelSpec) -> Mapping[str, Slice | None]:
    """For every frozen tensor a device is sent: embeddings and blocks below the window, and what stays around it.

    Of a block in the window that is the segments which do not train; its norms and output biases train with it.
    """
    slices: dict[str, Slice | None] = {}
    if spec.has_prefix:
        slices |= _embedding_slices(config, spec)
    for block in range(spec.frozen):
        slices |= _block_slices(config, block, BlockKeep.full(config))
    if spec.rest:
        for block in range(spec.frozen, spec.top):
            others = _block_slices(config, block, spec.keep(block).others(config))
            slices |= {name: cut for name, cut in others.items() if layout(config)[name].cut is not None}
    for block in spec.above(config):
        slices |= _block_slices(config, block, BlockKeep.full(config))
    return MappingProxyType(slices)


def compact_shape(config: ModelConfig, name: str, cut: Slice | None) -> tuple[int, ...]:
    shape = list(layout(config)[name].shape)
    if cut is not None:
        shape[cut[0]] = len(cut[1])
    return tuple(shape)


@lru_cache(maxsize=256)
def trained_shapes(config: ModelConfig, spec: SubmodelSpec) -> Mapping[str, tuple[int, ...]]:
    """Names and shapes of what a device trains and sends back: the very same for the same submodel."""
    slices = window_slices(config, spec)
    return MappingProxyType({name: compact_shape(config, name, cut) for name, cut in slices.items()})


def take(weights: Mapping[str, Tensor], slices: Mapping[str, Slice | None]) -> Weights:
    """Cut tensors out, always as copies: what a device does to them cannot reach the original."""
    return {
        name: weights[name].clone() if cut is None else weights[name].index_select(*cut) for name, cut in slices.items()
    }


def extract(
    weights: Mapping[str, Tensor], config: ModelConfig, spec: SubmodelSpec, names: Iterable[str] | None = None
) -> Weights:
    """The compact weights a device trains: window, exits, and the embeddings if nothing is frozen; or these of them."""
    slices = window_slices(config, spec)
    return take(weights, slices if names is None else {name: slices[name] for name in names})


def extract_prefix(weights: Mapping[str, Tensor], config: ModelConfig, spec: SubmodelSpec) -> Weights:
    """The frozen part: what is below the window, and what stays inside and above it."""
    if not frozen_slices(config, spec):
        return {}
    taken = take(weights, frozen_slices(config, spec))
    return {sent: taken[name] for sent, name in frozen_names(config, spec).items()}


def frozen_names(config: ModelConfig, spec: SubmodelSpec) -> dict[str, str]:
    """Every frozen tensor a device is sent, as it is called on the way, and its name in the model."""
    inside = tuple(f"blocks.{block}." for block in range(spec.frozen, spec.top))
    return {_next_to_trained(name, inside): name for name in frozen_slices(config, spec)}


def part_key(name: str) -> str:
    """The part that a tensor belongs to, as devices keep it.

    >>> part_key("blocks.3.q.weight"), part_key("blocks.3.rest."), part_key("embed.tokens")
    ('blocks.3.', 'blocks.3.', 'embed.')
    """
    words = name.split(".")
    return ".".join(words[: 2 if words[0] == "blocks" else 1]) + "."


def _next_to_trained(name: str, inside: tuple[str, ...]) -> str:
    """The frozen rest of a block in the window has a name of its own: `blocks.3.rest.q.weight`."""
    if not name.startswith(inside):
        return name
    block = ".".join(name.split(".")[:2])
    return f"{block}.rest{name.removeprefix(block)}"


def scatter(compact: Mapping[str, Tensor], into: Weights, config: ModelConfig, spec: SubmodelSpec) -> Weights:
    """Put compact tensors back where they were cut out, in place; everything else stays bitwise as it was."""
    slices = window_slices(config, spec)
    check_shapes(compact, config, spec)
    for name, tensor in compact.items():
        cut = slices[name]
        if cut is None:
            into[name].copy_(tensor)
        else:
            into[name].index_copy_(*cut, tensor.to(into[name].dtype))  # copy_ converts by itself, this does not
    return into


def check_shapes(compact: Mapping[str, Tensor], config: ModelConfig, spec: SubmodelSpec) -> None:
    """Raise SpecError unless every tensor belongs to the submodel and has its compact shape."""
    expected = trained_shapes(config, spec)
    unknown = sorted(compact.keys() - expected.keys())
    if unknown:
        raise SpecError(f"{unknown[0]} is not part of this submodel ({len(expected)} tensors)")
    for name, tensor in compact.items():
        if tuple(tensor.shape) != expected[name]:
            raise SpecError(f"{name} has shape {tuple(tensor.shape)}, the spec says {expected[name]}")


def narrow(weights: Mapping[str, Tensor], config: ModelConfig, wide: SubmodelSpec, chosen: SubmodelSpec) -> Weights:
    """Cut an already compact submodel further: `chosen` keeps a part of what `wide` keeps, of the same window."""
    if (wide.frozen, len(wide.window), wide.exits, wide.rows) != (
        chosen.frozen, len(chosen.window), chosen.exits, chosen.rows,
    ):  # fmt: skip
        raise SpecError("a submodel can be narrowed only inside the same window, with the same exits and rows")
    places: list[BlockKeep] = []
    for block, (outer, inner) in enumerate(zip(wide.window, chosen.window, strict=True), start=wide.frozen):
        if not (set(inner.heads) <= set(outer.heads) and set(inner.units) <= set(outer.units)):
            raise SpecError(f"block {block}: the narrower submodel keeps segments that the wider one lacks")
        where_h = {head: i for i, head in enumerate(outer.heads)}
        where_u = {unit: i for i, unit in enumerate(outer.units)}
        places.append(BlockKeep(tuple(where_h[h] for h in inner.heads), tuple(where_u[u] for u in inner.units)))
    table = layout(config)
    narrowed: Weights = {}
    for name, tensor in weights.items():
        cut = table[name].cut
        if cut is None or cut[1] is Axis.ROW:
            narrowed[name] = tensor
        else:
            block = int(name.split(".")[1])
            kept = segment_index(config, cut[1], places[block - wide.frozen])
            narrowed[name] = tensor.index_select(cut[0], place(kept, tensor.device))
    return narrowed
