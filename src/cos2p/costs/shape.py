"""`Shape`: how large a submodel is, in counts. What bytes and FLOPs depend on, whichever segments are kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from cos2p.models.config import ModelConfig
from cos2p.models.hash_once import hash_once
from cos2p.models.layout import (
    Axis,
    block_parameters,
    embedding_parameters,
    exit_key,
    exit_parameters,
    segment_width,
)
from cos2p.models.spec import BlockSize, SubmodelSpec
from cos2p.numerics.output_table import SMALL
from cos2p.submodel.rates import cut, segment_costs, spread
from cos2p.submodel.window import exit_depths


@dataclass(frozen=True)
class Tables:
    """How much of the embeddings a device has."""

    rows: int | None = None
    """Rows of the token table (and of an untied output table); None: all."""
    fixed: bool = False
    """Whether the embeddings stay as they are."""


WHOLE = Tables()
"""All rows, and they train."""


@hash_once
@dataclass(frozen=True)
class Shape:
    """A `SubmodelSpec` without its indices."""

    frozen: int
    window: tuple[BlockSize, ...]
    exits: tuple[int, ...]
    prefix: tuple[BlockSize, ...]
    rest: bool = False
    """Whether the segments of the window's blocks that do not train stay in them."""
    above: int = 0
    """Frozen blocks that stay above the window."""
    rows: int | None = None
    """Rows of the token table that the device has; None: all."""
    fixed_embeddings: bool = False

    @property
    def has_prefix(self) -> bool:
        """Whether something frozen runs before the window: blocks, or the embeddings alone."""
        return self.frozen > 0 or self.fixed_embeddings

    @property
    def top(self) -> int:
        return self.frozen + len(self.window)

    @classmethod
    def of(cls, config: ModelConfig, spec: SubmodelSpec) -> Shape:
        return _shape_of(config, spec)

    def others(self, config: ModelConfig) -> tuple[BlockSize, ...]:
        """Of each block in the window the segments that stay next to those that train; none if they are removed."""
        if not self.rest:
            return (BlockSize(0, 0),) * len(self.window)
        return tuple(BlockSize(config.groups - size.heads, config.mlp - size.units) for size in self.window)

    @classmethod
    def at(
        cls,
        config: ModelConfig,
        rate: float,
        ratio: float = 1.0,
        start: int | None = None,
        tier_blocks: tuple[int, ...] = (),
        rotation: int | None = None,
        tables: Tables = WHOLE,
    ) -> Shape:
        """The submodel of a rate with its window at block `start`; None is the top, below which most is frozen.

        Segments that do not divide evenly go to blocks in an order turned by `rotation`; None turns with the window.
        """
        size = cut(config, rate, ratio)
        frozen = config.depth - size.blocks if start is None else start
        turn = frozen if rotation is None else rotation
        heads, units = spread(size.heads, size.blocks, turn), spread(size.units, size.blocks, turn)
        return cls(
            frozen,
            tuple(map(BlockSize, heads, units)),
            exit_depths(frozen, size.blocks, tier_blocks),
            (BlockSize.full(config),) * frozen,
            rows=tables.rows,
            fixed_embeddings=tables.fixed,
        )

    def exit_keys(self, config: ModelConfig) -> tuple[str, ...]:
        """Exits with parameters of their own: one when all depths share it."""
        return tuple(dict.fromkeys(exit_key(config, depth) for depth in self.exits))


@lru_cache(maxsize=256)
def _shape_of(config: ModelConfig, spec: SubmodelSpec) -> Shape:
    spec.check(config)
    window = tuple(BlockSize(len(k.heads), len(k.units)) for k in spec.window)
    prefix = (BlockSize.full(config),) * spec.frozen
    rows = None if spec.rows is None else len(spec.rows)
    above = len(spec.above(config))
    return Shape(spec.frozen, window, spec.exits, prefix, spec.rest, above, rows, spec.fixed_embeddings)


@lru_cache(maxsize=256)
def plain_scalars(config: ModelConfig) -> int:
    """Scalars of a block that are never cut: norms and the biases behind the residual sums."""
    head, unit = segment_costs(config)
    whole = sum(math.prod(p.shape) for p in block_parameters(config).values())
    return whole - config.groups * head - config.mlp * unit


def block_scalars(config: ModelConfig, size: BlockSize) -> int:
    return plain_scalars(config) + segment_scalars(config, size)


def embedding_scalars(config: ModelConfig, rows: int | None = None) -> int:
    """All tables, of the tokens' so many rows (None: all)."""
    whole = sum(math.prod(p.shape) for p in embedding_parameters(config).values())
    return whole if rows is None else whole - (config.vocab - rows) * config.dim


def exit_scalars(config: ModelConfig) -> int:
    return sum(math.prod(p.shape) for p in exit_parameters(config).values())


def table_scalars(config: ModelConfig, rows: int | None = None) -> int:
    """The output table of a language model, tied or not; 0 for classification."""
    return (config.vocab if rows is None else rows) * config.dim if config.task == "language-modeling" else 0


@lru_cache(maxsize=256)
def trainable_scalars(config: ModelConfig, shape: Shape) -> int:
    """What a device trains and sends back."""
    count = sum(block_scalars(config, size) for size in shape.window)
    count += len(shape.exit_keys(config)) * exit_scalars(config)
    if not shape.has_prefix:
        count += embedding_scalars(config, shape.rows)
    if not config.tied:
        count += table_scalars(config, shape.rows)
    return count


def trainable_sizes(config: ModelConfig, shape: Shape) -> list[int]:
    """Scalars of each of those tensors."""
    sizes, parameters = [], block_parameters(config).values()
    for size in shape.window:
        kept = {Axis.QUERY: size.heads, Axis.KEY: size.heads, Axis.UNIT: size.units}
        for parameter in parameters:
            scalars = math.prod(parameter.shape)
            if parameter.cut is not None:
                dim, axis = parameter.cut
                scalars = scalars // parameter.shape[dim] * kept[axis] * segment_width(config, axis)
            sizes.append(scalars)
    sizes += [math.prod(p.shape) for p in exit_parameters(config).values()] * len(shape.exit_keys(config))
    if not shape.has_prefix:
        tables = {name: math.prod(p.shape) for name, p in embedding_parameters(config).items()}
        if shape.rows is not None:
            tables["tokens"] = shape.rows * config.dim
        sizes += tables.values()
    if not config.tied and table_scalars(config):
        sizes.append(table_scalars(config, shape.rows))
    return sizes


def trainable_tensors(config: ModelConfig, shape: Shape) -> int:
    """How many tensors those scalars are in."""
    count = len(shape.window) * len(block_parameters(config))
    count += len(shape.exit_keys(config)) * len(exit_parameters(config))
    return count + (0 if shape.has_prefix else len(embedding_parameters(config)))


def frozen_table_scalars(config: ModelConfig, shape: Shape) -> int:
    """The tied output table next to a window that does not train it, in memory; a large one is read in parts."""
    held = config.tied and shape.has_prefix and (config.vocab if shape.rows is None else shape.rows) <= SMALL
    return table_scalars(config, shape.rows) if held else 0


def segment_scalars(config: ModelConfig, size: BlockSize) -> int:
    """Segments alone, without what a block shares."""
    head, unit = segment_costs(config)
    return size.heads * head + size.units * unit


def rest_scalars(config: ModelConfig, shape: Shape) -> int:
    """What stays frozen inside the window's blocks, in memory as long as they train."""
    return sum(segment_scalars(config, size) for size in shape.others(config))


def prefix_scalars(config: ModelConfig, shape: Shape) -> int:
    """Embeddings and blocks below the window; none if the window is at the bottom and trains them."""
    if not shape.has_prefix:
        return 0
    return embedding_scalars(config, shape.rows) + sum(block_scalars(config, size) for size in shape.prefix)


def frozen_scalars(config: ModelConfig, shape: Shape) -> int:
    """Everything a device is sent and does not train."""
    above = shape.above * block_scalars(config, BlockSize.full(config))
    return prefix_scalars(config, shape) + rest_scalars(config, shape) + above
