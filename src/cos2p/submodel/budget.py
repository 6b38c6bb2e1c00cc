"""Bytes of a submodel on a device. A prediction is a promise: what is measured is never more.

A device goes through three phases, and its budget has to hold the worst moment of each:

    prefix   the shard runs through the frozen part, one block in memory at a time, into the feature cache
    mask     weights are frozen; the gates of heads and units are trained, micro-batch by micro-batch
    weight   the submodel trains: weights, gradients, optimiser state, activations

Bytes are counted over the idle process (interpreter, torch, thread pool), as `measure` measures them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import get_args

from cos2p.errors import BudgetError, ConfigError
from cos2p.models.config import ModelConfig
from cos2p.submodel.flops import Phase, flops, task_flops
from cos2p.submodel.rates import cut
from cos2p.submodel.shape import (
    BlockSize,
    Shape,
    block_scalars,
    embedding_scalars,
    frozen_table_scalars,
    prefix_scalars,
    trainable_scalars,
)
from cos2p.submodel.spec import SubmodelSpec
from cos2p.submodel.tape import FLOAT, BlockTape, embedding_ops, pass_tape, walk
from cos2p.submodel.workload import Workload
from cos2p.training.optimizers import STATE_BYTES
from cos2p.units import format_bytes, parse_bytes

__all__ = [
    "Ledger",
    "MaskPlan",
    "Phase",
    "Workload",
    "flops",
    "largest_rate",
    "ledger",
    "mask_plan",
    "peak",
    "prefix_batch",
    "require",
    "task_flops",
]

SLACK_BYTES = 4 * 2**20
"""Rounding of every tensor to whole pages, small tensors in the heap, Python's own objects."""

STEP_BYTES = 2**20
"""What an optimiser's step needs beside its state (see `training.optimizers`)."""


@dataclass(frozen=True)
class Ledger:
    """Bytes held at the worst moment of one phase."""

    phase: Phase
    moment: str
    """Which moment is the worst: `pass` (forward and backward), `step`, `prefix` or `load`."""
    weights: int
    """Tensors that train (in the mask phase: the candidates), and a tied output table held frozen."""
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    prefix: int = 0
    """Frozen blocks in memory."""
    features: int = 0
    """Cache of what the prefix gave."""
    inputs: int = 0
    overhead: int = SLACK_BYTES

    @property
    def total(self) -> int:
        state = self.weights + self.gradients + self.optimizer + self.activations
        return state + self.prefix + self.features + self.inputs + self.overhead


def ledger(config: ModelConfig, spec: SubmodelSpec, workload: Workload, phase: Phase = "weight") -> Ledger:
    """The worst moment of one phase. In the mask phase `spec` names the candidates."""
    return shape_ledger(config, Shape.of(config, spec), workload, phase)


def peak(config: ModelConfig, spec: SubmodelSpec, workload: Workload) -> Ledger:
    """The worst phase of a task. The mask phase is never it: `mask_plan` keeps it below the others."""
    return shape_peak(config, Shape.of(config, spec), workload)


def shape_peak(config: ModelConfig, shape: Shape, workload: Workload) -> Ledger:
    phases = (shape_ledger(config, shape, workload, "prefix"), shape_ledger(config, shape, workload, "weight"))
    return max(phases, key=lambda entry: entry.total)


def shape_ledger(config: ModelConfig, shape: Shape, workload: Workload, phase: Phase) -> Ledger:
    if phase not in get_args(Phase):
        raise ConfigError(f"unknown phase {phase!r}; known: {', '.join(get_args(Phase))}")
    trainable = trainable_scalars(config, shape)
    gates = sum(size.heads + size.units for size in shape.window) if phase == "mask" else 0
    stepped = {"prefix": 0, "mask": gates, "weight": trainable}[phase]
    copies = 2 if workload.keep_start and phase == "weight" else 1
    base = Ledger(
        phase,
        "load",
        weights=FLOAT * (copies * trainable + frozen_table_scalars(config, shape) + 2 * gates),
        optimizer=STATE_BYTES[workload.optimizer] * stepped,
        prefix=_waiting(config, shape, workload),
        features=_cache(config, shape, workload),
        inputs=_inputs(config, workload),
    )
    moments = [base]
    if phase == "weight":
        moments += _weight_moments(config, shape, workload, base, FLOAT * stepped)
    elif phase == "mask":
        kept = walk(pass_tape(config, shape, workload, train=False)).activations
        moments.append(replace(base, moment="pass", activations=kept, gradients=FLOAT * gates))
    elif workload.caches(shape.frozen):
        moments += _prefix_moments(config, shape, workload, base, _prefix_batch(config, shape, workload))
    if phase != "prefix" and shape.frozen and not workload.caches(shape.frozen):
        accumulated = replace(base, gradients=FLOAT * stepped if workload.micro < workload.batch else 0)
        moments += _prefix_moments(config, shape, workload, accumulated, workload.micro)
    return max(moments, key=lambda entry: entry.total)


def _weight_moments(
    config: ModelConfig, shape: Shape, workload: Workload, base: Ledger, gradients: int
) -> list[Ledger]:
    worst = walk(pass_tape(config, shape, workload), accumulated=workload.micro < workload.batch)
    features = workload.micro * workload.length(config) * config.dim * FLOAT if shape.frozen else 0
    return [
        replace(base, moment="pass", activations=worst.activations, gradients=worst.gradients),
        replace(base, moment="step", activations=features + STEP_BYTES, gradients=gradients),
    ]


def _prefix_moments(config: ModelConfig, shape: Shape, workload: Workload, base: Ledger, samples: int) -> list[Ledger]:
    """Some samples in the widest part of the prefix; and a streamed part in 16 bits beside its decoded form."""
    tokens = workload.length(config)
    features = samples * tokens * config.dim * FLOAT
    sizes = set(shape.prefix)
    passing = max(
        *(op.forward for op in embedding_ops(config, samples, tokens, workload.threads)),
        *(features + BlockTape(config, size, samples * tokens).inference() for size in sizes),
    )
    if workload.prefix == "held":
        return [replace(base, moment="prefix", activations=passing)]
    part = FLOAT * max(embedding_scalars(config), *(block_scalars(config, size) for size in sizes))
    return [
        replace(base, moment="prefix", activations=passing, prefix=base.prefix + part),
        replace(base, moment="load", prefix=base.prefix + part + part // 2),
    ]


def prefix_batch(config: ModelConfig, spec: SubmodelSpec, workload: Workload) -> int:
    """Samples at a time through a streamed prefix, so that this pass needs no more memory than the training behind it.

    Features do not depend on it: a wide frozen block is made to fit a narrow window's budget by fewer samples.
    """
    return _prefix_batch(config, Shape.of(config, spec), workload)


def _prefix_batch(config: ModelConfig, shape: Shape, workload: Workload) -> int:
    if workload.prefix_batch or not workload.caches(shape.frozen):
        return workload.prefix_batch or workload.micro
    allowed = shape_ledger(config, shape, workload, "weight").total

    def needed(samples: int) -> int:
        fixed = replace(workload, prefix_batch=samples)
        return shape_ledger(config, shape, fixed, "prefix").total

    return _last(1, workload.micro, lambda samples: needed(samples) <= allowed)


def _waiting(config: ModelConfig, shape: Shape, workload: Workload) -> int:
    """The prefix while the window trains: held, or waiting in memory for its pass, or on disk."""
    each = FLOAT if workload.prefix == "held" else workload.payload_bytes
    return each * prefix_scalars(config, shape)


def _cache(config: ModelConfig, shape: Shape, workload: Workload) -> int:
    if not workload.caches(shape.frozen) or workload.features == "disk":
        return 0
    return workload.shard * workload.length(config) * config.dim * workload.feature_bytes


def _inputs(config: ModelConfig, workload: Workload) -> int:
    """One micro-batch as the model takes it, and the raw shard if it is in memory."""
    if config.family == "vit":
        scalars, each = config.channels * config.image**2, FLOAT
    else:
        scalars, each = workload.length(config), 8
    return scalars * (workload.micro * each + workload.shard * workload.shard_bytes)


def largest_rate(
    config: ModelConfig,
    memory: int | str,
    workload: Workload,
    ratio: float = 1.0,
    start: int | None = None,
    tier_blocks: tuple[int, ...] = (),
) -> float:
    """The largest rate whose submodel fits at every window position (or at `start`); 0.0 if none does.

    Bytes rise with the rate as long as the number of blocks stays; a submodel of one block less and wider may need
    less. So the rates of each number of blocks are searched apart, the deepest first.
    """
    budget = parse_bytes(memory)

    def fits(rate: float) -> bool:
        blocks = cut(config, rate, ratio).blocks
        if start is not None and start + blocks > config.depth:
            return False
        places = {0, config.depth - blocks} if start is None else {start}
        shapes = (Shape.at(config, rate, ratio, place, tier_blocks) for place in places)
        return all(shape_peak(config, shape, workload).total <= budget for shape in shapes)

    for low, high in _steps_of_depth(config, ratio):
        if fits(low / _RATES):
            return _last(low, high, lambda i: fits(i / _RATES)) / _RATES
    return 0.0


def _steps_of_depth(config: ModelConfig, ratio: float) -> Iterator[tuple[int, int]]:
    """The first and last rate (in `_RATES`) of every number of blocks, the deepest first."""
    high = _RATES
    while high > 0:
        blocks = cut(config, high / _RATES, ratio).blocks
        below = bisect_left(range(1, high + 1), blocks, key=lambda i: cut(config, i / _RATES, ratio).blocks)
        yield below + 1, high
        high = below


_RATES = 2**20  # rates are searched in steps of a millionth


def _last(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The last of low..high for which a condition holds that holds at `low` and, once false, stays false."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def require(config: ModelConfig, spec: SubmodelSpec, workload: Workload, memory: int | str) -> Ledger:
    """The ledger of a task's worst phase, or BudgetError if that is more than `memory`. Nothing is allocated."""
    budget = parse_bytes(memory)
    needed = peak(config, spec, workload)
    if needed.total <= budget:
        return needed
    rate = largest_rate(config, budget, workload)
    if rate > 0.0:
        advice = f"the largest rate that fits at every window position is {_rounded_down(rate)}"
    else:
        advice = f"no submodel of this model fits; a smaller batch (now {workload.micro} at a time) needs less"
    raise BudgetError(
        f"the submodel needs {format_bytes(needed.total)} in its {needed.phase} phase, "
        f"but the device has {format_bytes(budget)}; {advice}"
    )


def _rounded_down(rate: float) -> str:
    return f"{math.floor(rate * 10_000) / 10_000 or rate:.4g}"


@dataclass(frozen=True)
class MaskPlan:
    """How the mask phase fits the budget: candidates of every window block, and samples at a time."""

    heads: tuple[int, ...]
    units: tuple[int, ...]
    micro_batch: int


def mask_plan(config: ModelConfig, spec: SubmodelSpec, workload: Workload, memory: int | str | None = None) -> MaskPlan:
    """How many candidates the mask phase may hold, in `memory` or in what the submodel's own training needs.

    Frozen weights cost 4 bytes a scalar where training with Adan costs 24, so often all segments of the window fit.
    First the micro-batch shrinks, down to one sample: accumulated gradients are the same. If that is not enough, each
    block gets as many candidates beyond the kept ones as fit, in equal shares; the device rotates them.
    """
    shape = Shape.of(config, spec)
    budget = shape_peak(config, shape, workload).total if memory is None else parse_bytes(memory)

    def window(share: int) -> tuple[BlockSize, ...]:
        return tuple(
            BlockSize(
                size.heads + (config.groups - size.heads) * share // _SHARES,
                size.units + (config.mlp - size.units) * share // _SHARES,
            )
            for size in shape.window
        )

    def needed(share: int, micro: int) -> int:
        wide = replace(shape, window=window(share))
        return shape_ledger(config, wide, replace(workload, micro_batch=micro), "mask").total

    micro = workload.micro
    while micro > 1 and needed(_SHARES, micro) > budget:
        micro = (micro + 1) // 2
    if needed(0, micro) > budget:
        raise BudgetError(
            f"the mask phase needs {format_bytes(needed(0, micro))} even with the kept segments alone and one sample "
            f"at a time, but has {format_bytes(budget)}; choose a smaller rate"
        )
    chosen = window(_last(0, _SHARES, lambda share: needed(share, micro) <= budget))
    return MaskPlan(tuple(size.heads for size in chosen), tuple(size.units for size in chosen), micro)


_SHARES = 4096
