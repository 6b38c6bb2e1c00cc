"""Virtual time: how long a device takes for a task. FLOPs over its speed, bytes over its bandwidth, seeded jitter.

Everything counts: the download, the pass through the frozen prefix, the mask phase, the training, the test of the
personal submodel, the upload.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from torch import Tensor

from cos2p.devices.device import Device
from cos2p.messages import Order
from cos2p.seeding import numpy_rng
from cos2p.training.contract import TaskContract
from cos2p.training.costs import TaskFlops
from cos2p.training.rate_trial import trial_size


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
        return dict(vars(self))


def task_phases(
    contract: TaskContract, device: Device, samples: int, test_samples: int, download: int, widths: Tensor | None = None
) -> Phases:
    """How long the device takes; the jitter depends on the run's seed, the device and the attempt, nothing else.

    `widths` are the lengths of its texts; without them every sample is as long as the model takes.
    """
    order, work = contract.order, task_flops(contract, samples, test_samples, widths)
    trial = trial_size(contract, samples)
    more = 1.0 if trial is None else 1.0 + trial.share(samples, contract.local.epochs)
    factor = device.jitter_factor(numpy_rng(order.seed, "jitter", order.client, order.attempt))
    return Phases(
        download=device.download_seconds(download) * factor,
        prefix=device.compute_seconds(work.prefix) * factor,
        masks=device.compute_seconds(work.masks) * factor,
        training=device.compute_seconds(work.training) * factor * more,
        upload=device.upload_seconds(contract.wire_upload()) * factor,
    )


def task_flops(contract: TaskContract, samples: int, test_samples: int, widths: Tensor | None) -> TaskFlops:
    """`widths` as of `task_phases`."""
    if widths is None or len(widths) == 0:
        return contract.flops(samples, test_samples)
    return texttask_flops(lambda tokens: contract.with_tokens(tokens).flops(samples, test_samples), widths)


def texttask_flops(flops_at: Callable[[int], TaskFlops], widths: Tensor) -> TaskFlops:
    """The mean of `flops_at` over these lengths of texts.

    A task's FLOPs are a polynomial of degree two in the length of its texts: linear maps grow with the length,
    attention with its square. So three lengths give them for every other one. Batches hold texts of like length, so a
    text costs its own length, rounded up as batches are; a few share a batch with longer ones and cost a little more.

    >>> import torch
    >>> texttask_flops(lambda tokens: TaskFlops(training=tokens**2), torch.tensor([8, 16])).training
    160.0
    """
    first, second, third = (flops_at(tokens) for tokens in (1, 2, 3))
    steps = widths.double() - 1
    linear, square = float(steps.mean()), float((steps * (steps - 1) / 2).mean())
    values = {}
    for field in fields(TaskFlops):
        a, b, c = (float(getattr(found, field.name)) for found in (first, second, third))
        values[field.name] = a + linear * (b - a) + square * (c - 2 * b + a)
    return TaskFlops(**values)


def lost_after(device: Device, order: Order, seconds: float) -> float | None:
    """When, after the dispatch, the task is lost because the device restarts; None if it is not."""
    if device.drop_rate == 0.0:
        return None
    rng = numpy_rng(order.seed, "drop", order.client, order.attempt)
    return float(rng.uniform()) * seconds if rng.uniform() < device.drop_rate else None
