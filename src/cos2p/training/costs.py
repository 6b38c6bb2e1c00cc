"""The costs of a task for a device before it is given out: FLOPs for the clock, bytes for the budget.

Both are computed from the order alone, so the server can refuse or shrink a task before anything is allocated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from cos2p.costs.flops import block_forward, embedding_forward, exit_forward, prefix_forward, shape_flops
from cos2p.costs.ledger import Ledger, forward_ledger, shape_ledger
from cos2p.costs.shape import Shape, Workload, trainable_scalars
from cos2p.messages import Order
from cos2p.models.config import ModelConfig
from cos2p.models.spec import BlockKeep, BlockSize, SubmodelSpec
from cos2p.submodel.rates import segment_costs
from cos2p.training.settings import LocalSettings


@dataclass(frozen=True)
class TaskFlops:
    """FLOPs of the parts of a task."""

    prefix: float = 0.0
    masks: float = 0.0
    training: float = 0.0


def trained_shape(config: ModelConfig, order: Order) -> Shape:
    """The size of what the device will train, known before its masks are."""
    return _trained(Shape.of(config, order.spec), order.quotas)


def _trained(sent: Shape, quotas: tuple[BlockSize, ...] | None) -> Shape:
    return sent if quotas is None else replace(sent, window=quotas)


def trained_spec(order: Order) -> SubmodelSpec:
    """A submodel of the size of what the device will train: of candidates the first ones that its quotas allow."""
    if order.quotas is None:
        return order.spec
    kept = zip(order.spec.window, order.quotas, strict=True)
    window = tuple(BlockKeep(keep.heads[: q.heads], keep.units[: q.units]) for keep, q in kept)
    return replace(order.spec, window=window)


def update_bytes(config: ModelConfig, order: Order) -> int:
    """Bytes of the tensors that will come back."""
    return 4 * trainable_scalars(config, trained_shape(config, order))


def prunable_scalars(config: ModelConfig, shape: Shape) -> int:
    """Scalars of the heads and units in the window."""
    head, unit = segment_costs(config)
    return sum(head * size.heads + unit * size.units for size in shape.window)


def forward_flops(config: ModelConfig, spec: SubmodelSpec) -> float:
    """One sample through an unfrozen submodel."""
    shape, tokens = Shape.of(config, spec), config.tokens
    blocks = sum(block_forward(config, size, tokens) for size in shape.window)
    return embedding_forward(config) + blocks + len(shape.exits) * exit_forward(config, tokens, shape.rows)


def forward_memory(
    config: ModelConfig, spec: SubmodelSpec, settings: LocalSettings, samples: int, copies: int = 1, between: int = 0
) -> Ledger:
    """Bytes of a task that runs forward alone, through an unfrozen submodel; see `costs.ledger.forward_ledger`."""
    return forward_ledger(config, Shape.of(config, spec), workload(settings, samples), copies, between)


def mask_samples(samples: int, share: float) -> int:
    """How many of a device's samples its mask phase sees: at least one.

    >>> mask_samples(10, 0.25), mask_samples(2, 0.25), mask_samples(7, 1.0)
    (3, 1, 7)
    """
    return min(samples, max(1, math.ceil(samples * share)))


@lru_cache(maxsize=1024)
def workload(settings: LocalSettings, samples: int) -> Workload:
    """The local settings in the budget's words."""
    samples = max(1, samples)
    batch = min(settings.batch, samples)
    return Workload(
        batch=batch,
        samples=samples,
        epochs=settings.epochs,
        optimizer=settings.stepper,
        features=settings.store,
        feature_bytes=2 if settings.feature_precision == "float16" else 4,
        distill=settings.lambda2 > 0,
        keep_start=True,  # the weights as received stay, to subtract the trained ones from
        rescale=settings.rescale,
        step_in_backward=settings.memory_optimizations.step_in_backward is True,
        recompute=settings.memory_optimizations.recompute == "yes",
        micro_batch=settings.memory_optimizations.at_once(batch),
        tokens=settings.texts[0],
        shard_tokens=settings.texts[1],
    )


@lru_cache(maxsize=1024)
def submodel_flops(
    config: ModelConfig,
    sent: Shape,
    quotas: tuple[BlockSize, ...] | None,
    known: int,
    settings: LocalSettings,
    samples: int,
    test_samples: int,
) -> TaskFlops:
    """FLOPs of plain training: prefix pass, mask phase, training, the test of the personal submodel.

    By sizes, since a spec has thousands of numbers. `known`: through how many blocks the device has features of earlier
    tasks.
    """
    load = workload(settings, samples)
    shape = _trained(sent, quotas)
    tokens = load.length(config)
    epochs_of_steps = samples / load.batch
    masks = 0.0
    if quotas is not None:
        step = shape_flops(config, sent, load, "mask")
        seen = mask_samples(samples, settings.mask.share)
        masks = settings.mask.passes * (seen / load.batch) * step
    training = settings.epochs * epochs_of_steps * shape_flops(config, shape, load, "weight")
    forward = sum(block_forward(config, size, tokens) for size in shape.window) + exit_forward(
        config, tokens, shape.rows
    )
    return TaskFlops(
        prefix=(samples + test_samples) * prefix_pass(config, shape, tokens, known),
        masks=masks,
        training=training + test_samples * forward,
    )


def prefix_pass(config: ModelConfig, shape: Shape, tokens: int, known: int) -> float:
    """One sample through the frozen part, from the features on that the device has of earlier tasks."""
    if known == 0:
        return prefix_forward(config, shape, tokens)
    return sum(block_forward(config, size, tokens) for size in shape.prefix[known:])


def submodel_memory(config: ModelConfig, order: Order, settings: LocalSettings, samples: int) -> Ledger:
    """The worst phase of plain training."""
    return _submodel_memory(config, Shape.of(config, order.spec), order.quotas, settings, samples)


@lru_cache(maxsize=1024)
def _submodel_memory(
    config: ModelConfig,
    sent: Shape,
    quotas: tuple[BlockSize, ...] | None,
    settings: LocalSettings,
    samples: int,
) -> Ledger:
    load = workload(settings, samples)
    shape = _trained(sent, quotas)
    phases = [shape_ledger(config, shape, load, "prefix"), shape_ledger(config, shape, load, "weight")]
    if quotas is not None:
        small = load.with_(micro_batch=min(settings.mask.micro_batch or load.micro, load.micro), step_in_backward=False)
        phases.append(shape_ledger(config, sent, small, "mask"))
    return max(phases, key=lambda entry: entry.total)
