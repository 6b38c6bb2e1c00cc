"""The bytes that a submodel holds in each phase of a task, at the worst moment. A prediction is a promise.

    prefix   the shard runs through the frozen part, one block in memory at a time, into the feature cache; and, when
             training is over, its test part, next to the submodel as it came, as it is now, and the difference
    mask     weights are frozen; the gates of heads and units are trained, micro-batch by micro-batch
    weight   the submodel trains: weights, gradients, optimiser state, activations

Bytes are counted over the idle process (interpreter, torch, thread pool), as `measure` measures them. The promise holds
for a trainer that drops old gradients before it runs forward, and outputs before it runs backward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import get_args

from cos2p.costs.flops import Phase
from cos2p.costs.shape import (
    Shape,
    Workload,
    block_scalars,
    embedding_scalars,
    frozen_table_scalars,
    rest_scalars,
    trainable_scalars,
    trainable_sizes,
    trainable_tensors,
)
from cos2p.costs.tape import FLOAT, BlockTape, embedding_ops, pass_tape, walk
from cos2p.errors import ConfigError
from cos2p.models.config import ModelConfig
from cos2p.models.spec import SubmodelSpec
from cos2p.numerics.optimizers import STATE_BYTES, state_bytes, state_tensors, step_temporary_bytes

SLACK_BYTES = 3 * 2**20
"""Small tensors in the heap, Python's own objects, pages of code that were not touched before: the most that is allowed
for. `slack` has what a smaller task is given."""
LEAST_SLACK_BYTES = 2**20
SLACK_SHARE = 0.02

PAGE_BYTES = 4096
"""A large tensor is a mapping of its own, and its header takes one page more."""


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
    """Bytes between tensors: whole pages and the allocator's own."""

    @property
    def total(self) -> int:
        state = self.weights + self.gradients + self.optimizer + self.activations
        return state + self.prefix + self.features + self.inputs + self.overhead


def peak(config: ModelConfig, spec: SubmodelSpec, workload: Workload) -> Ledger:
    """The worst phase of a task. The mask phase is never it: `mask_plan` keeps it below the others."""
    return shape_peak(config, Shape.of(config, spec), workload)


def shape_peak(config: ModelConfig, shape: Shape, workload: Workload) -> Ledger:
    phases = (shape_ledger(config, shape, workload, "prefix"), shape_ledger(config, shape, workload, "weight"))
    return max(phases, key=lambda entry: entry.total)


@lru_cache(maxsize=1024)
def shape_ledger(config: ModelConfig, shape: Shape, workload: Workload, phase: Phase) -> Ledger:
    if phase not in get_args(Phase):
        raise ConfigError(f"unknown phase {phase!r}; known: {', '.join(get_args(Phase))}")
    trainable = trainable_scalars(config, shape)
    gates = sum(size.heads + size.units for size in shape.window) if phase == "mask" else 0
    stepped = {"prefix": 0, "mask": gates, "weight": trainable}[phase]
    tensors = trainable_tensors(config, shape) * ((2 + state_tensors(workload.optimizer)) if phase == "weight" else 1)
    held = frozen_table_scalars(config, shape) + (0 if phase == "prefix" else rest_scalars(config, shape))
    copies = 2 if workload.keep_start and phase == "weight" else 1
    base = Ledger(
        phase,
        "load",
        weights=FLOAT * (copies * trainable + held + 2 * gates),
        optimizer=_optimizer_bytes(config, shape, workload, phase, gates),
        features=_cache(config, shape, workload),
        inputs=_inputs(config, workload),
        overhead=SLACK_BYTES + PAGE_BYTES * tensors,
    )
    moments = [base]
    if phase == "weight":
        moments += _weight_moments(config, shape, workload, base, FLOAT * stepped)
    elif phase == "mask":
        kept = walk(pass_tape(config, shape, workload, train=False)).activations
        moments.append(replace(base, moment="pass", activations=kept, gradients=FLOAT * gates))
    elif shape.has_prefix:
        moments += _prefix_moments(config, shape, workload, base, prefix_batch(config, shape, workload))
    if phase != "mask" and workload.keep_start and shape.has_prefix:
        tested = FLOAT * (3 * trainable + frozen_table_scalars(config, shape) + rest_scalars(config, shape))
        samples = 1 if phase == "weight" else prefix_batch(config, shape, workload)
        moments += _prefix_moments(config, shape, workload, replace(base, weights=tested, optimizer=0), samples)
    return with_slack(max(moments, key=lambda entry: entry.total))


def forward_ledger(config: ModelConfig, shape: Shape, workload: Workload, copies: int, between: int) -> Ledger:
    """Forward passes alone, through an unfrozen submodel: no gradient, no optimiser, one block's tensors at a time.

    `copies`: how often the weights are held; `between`: bytes that are needed for a moment when no pass runs.
    """
    samples, tokens = workload.micro, workload.length(config)
    residual = samples * tokens * config.dim * FLOAT
    moments = [op.forward for op in embedding_ops(config, samples, tokens, workload.threads, shape.rows)]
    for size in set(shape.window):
        block = BlockTape(config, size, samples * tokens)
        moments.append(residual + block.inference() + (max(block.Q, block.F) if workload.rescale else 0))
    language = config.task == "language-modeling"
    outputs = shape.rows if language and shape.rows is not None else config.outputs
    moments.append(residual + 4 * FLOAT * samples * outputs * (tokens if language else 1))
    weights = copies * FLOAT * trainable_scalars(config, shape)
    inputs = _inputs(config, workload)
    return with_slack(Ledger("weight", "pass", weights=weights, activations=max(*moments, between), inputs=inputs))


def slack(rest: int) -> int:
    """For a task of so many bytes in all else: a megabyte and 2 %, up to three megabytes.

    Of the three 0.0 to 1.0 were used by tasks of 15 to 2,700 MB (`benchmarks.submodel`, `benchmarks.fullsize`); of a
    task of 15 MB, two megabytes that nothing takes are a seventh.
    """
    return min(SLACK_BYTES, LEAST_SLACK_BYTES + int(SLACK_SHARE * rest))


def with_slack(entry: Ledger) -> Ledger:
    """The entry, counted with `SLACK_BYTES`, with the slack of a task of its size. The order of entries stays."""
    return replace(entry, overhead=entry.overhead - SLACK_BYTES + slack(entry.total - SLACK_BYTES))


def _optimizer_bytes(config: ModelConfig, shape: Shape, workload: Workload, phase: Phase, gates: int) -> int:
    if phase == "weight":
        return state_bytes(workload.optimizer, trainable_sizes(config, shape))
    # Gates are trained block by block in small tensors, which have no codes.
    return STATE_BYTES[workload.optimizer] * gates


def _weight_moments(
    config: ModelConfig, shape: Shape, workload: Workload, base: Ledger, gradients: int
) -> list[Ledger]:
    features = workload.micro * workload.length(config) * config.dim * FLOAT if shape.has_prefix else 0
    chunk = step_temporary_bytes(workload.optimizer, workload.threads)
    tape = pass_tape(config, shape, workload)
    if workload.step_in_backward:
        worst = walk(tape, "stepped")
        return [replace(base, moment="pass", activations=worst.activations + chunk, gradients=worst.gradients)]
    worst = walk(tape, "accumulated" if workload.micro < workload.batch else "kept")
    return [
        replace(base, moment="pass", activations=worst.activations, gradients=worst.gradients),
        replace(base, moment="step", activations=features + chunk, gradients=gradients),
    ]


def _prefix_moments(config: ModelConfig, shape: Shape, workload: Workload, base: Ledger, samples: int) -> list[Ledger]:
    """Some samples in the widest part of the prefix; and a streamed part in 16 bits next to its decoded form."""
    tokens = workload.length(config)
    features = samples * tokens * config.dim * FLOAT
    sizes = set(shape.prefix)
    passing = max(
        *(op.forward for op in embedding_ops(config, samples, tokens, workload.threads, shape.rows)),
        *(features + BlockTape(config, size, samples * tokens).inference() for size in sizes),
        0,
    )
    # Only the rows of some samples of a token table are read at a time, in 16 bits and then in 32.
    tables = embedding_scalars(config) if config.family == "vit" else embedding_scalars(config, rows=0)
    passing = max(passing, features + features // 2)
    part = FLOAT * max(tables, *(block_scalars(config, size) for size in sizes), 0)
    return [
        replace(base, moment="prefix", activations=passing, prefix=base.prefix + part),
        replace(base, moment="load", prefix=base.prefix + part + part // 2),
    ]


def prefix_batch(config: ModelConfig, shape: Shape, workload: Workload) -> int:
    """Samples at a time through a streamed prefix, so that this pass needs no more memory than the training behind it.

    Features do not depend on it: a wide frozen block is made to fit a narrow window's budget by fewer samples.
    """
    if workload.prefix_batch or not shape.has_prefix:
        return workload.prefix_batch or workload.micro
    allowed = shape_ledger(config, shape, workload, "weight").total

    def needed(samples: int) -> int:
        fixed = replace(workload, prefix_batch=samples)
        return shape_ledger(config, shape, fixed, "prefix").total

    return last_holding(1, workload.micro, lambda samples: needed(samples) <= allowed)


def _cache(config: ModelConfig, shape: Shape, workload: Workload) -> int:
    if not shape.has_prefix or workload.features == "disk":
        return 0
    tokens = workload.shard_tokens or workload.shard * workload.length(config)
    return tokens * config.dim * workload.feature_bytes


def _inputs(config: ModelConfig, workload: Workload) -> int:
    """One micro-batch as the model takes it."""
    image = config.family == "vit"
    return workload.micro * (FLOAT * config.channels * config.image**2 if image else 8 * workload.length(config))


def last_holding(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The last of low..high for which a condition holds that holds at `low` and, once false, stays false."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
