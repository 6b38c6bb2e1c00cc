"""How large a submodel is, in counts (`Shape`), and what a device does with it (`Workload`): all that bytes and FLOPs
depend on, whichever segments are kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, get_args

from cos2p.errors import ConfigError
from cos2p.models.config import ModelConfig, hash_once
from cos2p.models.layout import (
    Axis,
    block_parameters,
    embedding_parameters,
    exit_key,
    exit_parameters,
    segment_width,
)
from cos2p.models.spec import BlockSize, SubmodelSpec
from cos2p.numerics.optimizers import STATE_BYTES
from cos2p.numerics.output_table import SMALL
from cos2p.submodel.rates import cut, exit_depths, segment_costs, spread


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
        """The segments of each block in the window that stay next to those that train; none if they are removed."""
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
    """Scalars that a device trains and sends back."""
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
    """Scalars that stay frozen inside the window's blocks, in memory as long as they train."""
    return sum(segment_scalars(config, size) for size in shape.others(config))


Store = Literal["memory", "disk"]


@dataclass(frozen=True)
class Workload:
    """One task on one device. Zero in a derived field means "work it out".

    >>> Workload(batch=8, samples=20).steps
    3
    """

    batch: int = 8
    """Samples of one optimiser step."""
    samples: int = 0
    """Samples of the shard: the length of the feature cache and of an epoch; 0 means one batch."""
    epochs: int = 1
    """Passes over the shard in the weight phase (E)."""
    optimizer: str = "adan"
    """A key of `numerics.optimizers.STATE_BYTES`."""
    micro_batch: int = 0
    """Samples of one forward and backward; 0 means the whole batch. Smaller saves activations, not weights."""
    prefix_batch: int = 0
    """Samples of one forward through a streamed prefix; 0 means as many as stay below the weight phase's memory."""
    features: Store = "memory"
    """Where the features behind the frozen prefix wait."""
    feature_bytes: int = 4
    """Bytes of a cached scalar: 4 or 2."""
    keep_start: bool = False
    """Whether the weights as they came stay in memory, to be compared with the trained ones."""
    tokens: int = 0
    """Length of a sequence of text; 0 means the model's longest. An image's length is fixed."""
    shard_tokens: int = 0
    """Tokens of all texts of the shard; 0 means that each is as long as the longest."""
    distill: bool = False
    """Whether shallow exits learn from the deepest one: their logits are held several times."""
    rescale: bool = False
    """Training-time 1/(kept share), which keeps one more tensor a block."""
    step_in_backward: bool = False
    """Whether each gradient is stepped with and dropped as soon as it is there (`numerics.backward_step`)."""
    recompute: bool = False
    """Whether a block keeps its input alone and runs again in the backward (`numerics.backward_step`)."""
    threads: int = 2
    """Threads of the device's kernels; some need scratch memory for each."""

    def __post_init__(self) -> None:
        for name in ("batch", "epochs", "threads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"workload {name} is {getattr(self, name)}; it must be at least 1")
        for name in ("samples", "micro_batch", "prefix_batch", "tokens"):
            if getattr(self, name) < 0:
                raise ConfigError(f"workload {name} is {getattr(self, name)}; it cannot be negative")
        if self.micro_batch > self.batch:
            raise ConfigError(f"micro_batch {self.micro_batch} is larger than the batch {self.batch}")
        if self.step_in_backward and self.micro < self.batch:
            raise ConfigError(
                f"micro_batch {self.micro_batch} is smaller than the batch {self.batch}, whose gradients then add up; "
                "step_in_backward uses each at once: set one of the two"
            )
        for name, value, known in (
            ("optimizer", self.optimizer, tuple(STATE_BYTES)),
            ("features", self.features, get_args(Store)),
            ("feature_bytes", self.feature_bytes, (2, 4)),
        ):
            if value not in known:
                raise ConfigError(f"workload {name} is {value!r}; known: {', '.join(map(str, known))}")

    @property
    def shard(self) -> int:
        return self.samples or self.batch

    @property
    def micro(self) -> int:
        """Samples that pass the model at once."""
        return self.micro_batch or self.batch

    @property
    def steps(self) -> int:
        """Optimiser steps of one epoch."""
        return -(-self.shard // self.batch)

    def length(self, config: ModelConfig) -> int:
        """Tokens of one sample."""
        if config.family == "vit" or self.tokens == 0:
            return config.tokens
        if self.tokens > config.max_tokens:
            raise ConfigError(f"workload tokens is {self.tokens}, but the model takes at most {config.max_tokens}")
        return self.tokens

    def with_(self, **changes: Any) -> Workload:
        return replace(self, **changes)
