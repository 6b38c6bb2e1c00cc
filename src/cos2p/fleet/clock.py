"""Virtual time: how long a device takes for a task. FLOPs over its speed, bytes over its bandwidth, seeded jitter.

Everything counts: the download, the pass through the frozen prefix, the mask phase, the training, the test of the
personal submodel, the upload.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from cos2p.fleet.devices import Device
from cos2p.messages import Order
from cos2p.models.config import ModelConfig
from cos2p.seeding import numpy_rng
from cos2p.submodel.flops import block_forward, exit_forward, prefix_forward, shape_flops
from cos2p.submodel.shape import BlockSize, Shape, trainable_scalars
from cos2p.submodel.workload import Workload
from cos2p.training.settings import LocalSettings


@dataclass(frozen=True)
class Phases:
    """Seconds of each part of a task."""

    download: float
    prefix: float
    masks: float
    training: float
    upload: float

    @property
    def total(self) -> float:
        return self.download + self.prefix + self.masks + self.training + self.upload

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


def trained_shape(config: ModelConfig, order: Order) -> Shape:
    """The size of what the device will train, known before its masks are."""
    shape = Shape.of(config, order.spec)
    if order.quotas is None:
        return shape
    window = tuple(BlockSize(q.heads, q.units) for q in order.quotas)
    return Shape(shape.frozen, window, shape.exits, shape.prefix)


def upload_bytes(config: ModelConfig, order: Order) -> int:
    """Bytes of the tensors that will come back."""
    return 4 * trainable_scalars(config, trained_shape(config, order))


def task_phases(
    config: ModelConfig, device: Device, order: Order, samples: int, test_samples: int, download: int
) -> Phases:
    """How long the device takes; the jitter depends on the run's seed, the device and the attempt, nothing else."""
    work = local_flops(config, order, samples, test_samples)
    factor = device.jitter_factor(numpy_rng(order.seed, "jitter", order.client, order.attempt))
    return Phases(
        download=device.download_seconds(download) * factor,
        prefix=device.compute_seconds(work["prefix"]) * factor,
        masks=device.compute_seconds(work["masks"]) * factor,
        training=device.compute_seconds(work["training"]) * factor,
        upload=device.upload_seconds(upload_bytes(config, order)) * factor,
    )


def local_flops(config: ModelConfig, order: Order, samples: int, test_samples: int) -> dict[str, float]:
    """FLOPs of each part of a task of the `submodel` trainer; others say theirs in `order.settings`."""
    settings = LocalSettings.model_validate(order.settings)
    workload = Workload(batch=settings.batch, samples=max(1, samples))
    shape = trained_shape(config, order)
    tokens = workload.length(config)
    per_sample = 1.0 / settings.batch
    masks = 0.0
    if order.quotas is not None:
        step = shape_flops(config, Shape.of(config, order.spec), workload, "mask")
        masks = settings.mask.epochs * samples * per_sample * step
    training = settings.epochs * samples * per_sample * shape_flops(config, shape, workload, "weight")
    forward = sum(block_forward(config, size, tokens) for size in shape.window) + exit_forward(config, tokens)
    return {
        "prefix": (samples + test_samples) * prefix_forward(config, shape, tokens),
        "masks": masks,
        "training": training + test_samples * forward,
    }


def lost_after(device: Device, order: Order, seconds: float) -> float | None:
    """When, after the dispatch, the task is lost because the device restarts; None if it is not."""
    rng = numpy_rng(order.seed, "drop", order.client, order.attempt)
    return float(rng.uniform()) * seconds if rng.uniform() < device.drop_rate else None


def gone_before(device: Device, time: float) -> bool:
    return device.gone_at <= time or math.isnan(time)
