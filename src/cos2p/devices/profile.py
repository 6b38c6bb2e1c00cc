"""The capacity of a device, measured on it: the paper's way to choose R_n.

Submodels of several capacities train a few steps, each in a process of its own, with the window at the top of the
model where the frozen prefix is longest. From the real seconds and bytes follows the largest rate that fits the memory
and the time a task may take. Needs no server and no data.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import tomli_w
import torch

from cos2p.accelerator import CPU, free_bytes, overhead, resolve
from cos2p.costs.fitting import make_spec
from cos2p.costs.flops import shape_flops
from cos2p.costs.ledger import shape_peak
from cos2p.costs.shape import Shape, Workload
from cos2p.devices.measure import Measurement, measure
from cos2p.errors import BudgetError, ConfigError, TrainingError
from cos2p.models.config import ModelConfig
from cos2p.older_python import tomllib
from cos2p.submodel.rates import LADDER, cut
from cos2p.units import format_bytes

RATES = (0.015625, 0.0625, 0.25, 0.5625, 1.0)
"""Rates that are measured, the smallest first: a device that cannot do one of them is spared the larger ones."""

STEPS = 3


@dataclass(frozen=True)
class Sample:
    """One submodel on this device."""

    rate: float
    step_seconds: float
    prefix_seconds: float
    """One pass of a batch through the frozen prefix."""
    peak: int
    """Bytes over the idle process, measured."""
    predicted: int
    """Bytes as the ledger says."""
    flops: float
    """FLOP of one step."""

    @property
    def flops_per_second(self) -> float:
        return self.flops / self.step_seconds


@dataclass(frozen=True)
class Profile:
    """The measurements, and the rate that follows from them."""

    model: str
    memory: int
    """Bytes training may take."""
    batch: int
    samples: int
    epochs: int
    target_seconds: float
    measured: tuple[Sample, ...]
    rate: float
    """The rate to give this device: the largest of the ladder that fits memory and time; 0 if none does."""
    flops: float
    """FLOP/s in training, at the measured rate nearest to `rate`."""
    accelerator: str = "cpu"
    """Where it was measured."""

    def task_seconds(self, rate: float) -> float:
        """Time of a task: one pass of the shard through the prefix, then the steps of all epochs."""
        return _interpolate(self.measured, rate, lambda sample: _task_seconds(sample, self))

    def peak_bytes(self, rate: float) -> float:
        return _interpolate(self.measured, rate, lambda sample: float(max(sample.peak, sample.predicted)))


def profile(
    config: ModelConfig,
    name: str,
    *,
    memory: int = 0,
    target_seconds: float = 0.0,
    batch: int = 8,
    samples: int = 500,
    epochs: int = 5,
    rates: Sequence[float] = RATES,
    threads: int = 0,
    accelerator: str = "cpu",
    on_sample: Callable[[float, Sample | str], None] = lambda rate, outcome: None,
    measuring: Callable[..., Measurement] = measure,
) -> Profile:
    """Measure submodels of the rates given. `on_sample` gets each one: its sample, or why there is none.

    `memory` 0 means four fifths of what this machine, or the accelerator, has free now. What a rate may take of it is
    less on a GPU, by what is not tensors.
    """
    device = resolve(accelerator)
    memory = memory or free_memory(device)
    workload = Workload(batch=batch)
    found: list[Sample] = []
    for rate in sorted(rates):
        shape = Shape.at(config, rate)
        predicted = shape_peak(config, shape, workload).total
        predicted += overhead(device)
        if predicted > free_memory(device) or predicted > 2 * memory:
            on_sample(rate, f"needs {format_bytes(predicted)}, not tried")
            continue
        spec = make_spec(config, rate, start=config.depth - cut(config, rate).blocks)
        try:
            run = measuring(config, spec, workload, steps=STEPS, threads=threads, accelerator=str(device))
        except TrainingError as error:
            on_sample(rate, str(error))
            break
        flops = shape_flops(config, shape, workload, "weight")
        sample = Sample(rate, run.seconds, run.prefix_seconds, run.peak_bytes, predicted, flops)
        found.append(sample)
        on_sample(rate, sample)
    if not found:
        raise BudgetError(
            f"not even {min(rates):g} of {name} trains in {format_bytes(memory)} with a batch of {batch}; "
            "give more memory or a smaller batch"
        )
    profiled = Profile(name, memory, batch, samples, epochs, target_seconds, tuple(found), 0.0, 0.0, str(device))
    rate = recommended_rate(profiled)
    nearest = min(found, key=lambda sample: abs(sample.rate - rate))
    return replace(profiled, rate=rate, flops=nearest.flops_per_second)


def recommended_rate(profiled: Profile) -> float:
    """The largest rate of the ladder within what was measured that fits the memory and the wanted time; 0.0 if none."""
    largest = max(sample.rate for sample in profiled.measured)
    for rate in LADDER:
        if rate > largest or profiled.peak_bytes(rate) > profiled.memory:
            continue
        if profiled.target_seconds == 0 or profiled.task_seconds(rate) <= profiled.target_seconds:
            return rate
    return 0.0


def _task_seconds(sample: Sample, profiled: Profile) -> float:
    passes = profiled.samples / profiled.batch
    return passes * (sample.prefix_seconds + profiled.epochs * sample.step_seconds)


def _interpolate(measured: Iterable[Sample], rate: float, value: Callable[[Sample], float]) -> float:
    """Between two measured rates by a straight line; outside by the nearest."""
    below = max((s for s in measured if s.rate <= rate), key=lambda s: s.rate, default=None)
    above = min((s for s in measured if s.rate >= rate), key=lambda s: s.rate, default=None)
    if below is None or above is None or below.rate == above.rate:
        near = below or above
        assert near is not None
        return value(near)
    share = (rate - below.rate) / (above.rate - below.rate)
    return value(below) + share * (value(above) - value(below))


def free_memory(device: torch.device = CPU) -> int:
    """Four fifths of what is free now, of an accelerator's memory if it has its own: the rest is for everybody else."""
    own = free_bytes(device)
    return int(0.8 * (psutil.virtual_memory().available if own is None else own))


# ---------------------------------------------------------------- device.toml


def write_device(profiled: Profile, path: str | Path, name: str = "") -> None:
    """The figures for a recipe's [[fleet.devices]] and for `cos2p fleet join --device`, and what they come from."""
    values = {
        "name": name or platform.node() or "device",
        "model": profiled.model,
        "rate": profiled.rate,
        "flops": round(profiled.flops),
        "memory": profiled.memory,
        "accelerator": profiled.accelerator,
        "batch": profiled.batch,
        "samples": profiled.samples,
        "epochs": profiled.epochs,
        "target_seconds": profiled.target_seconds,
        "processor": f"{platform.machine()}, {os.cpu_count()} cores",
        "measured": [asdict(sample) for sample in profiled.measured],
    }
    head = "# Measured by `cos2p profile`. Seconds are wall time, bytes are over the idle process.\n\n"
    try:
        Path(path).write_text(head + tomli_w.dumps(values), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


def read_device(path: str | Path) -> dict[str, Any]:
    """The file of `write_device`; ConfigError unless it has a memory and a speed."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    for field in ("memory", "flops"):
        if not isinstance(values.get(field), int | float) or values[field] <= 0:
            raise ConfigError(f"{path}: {field} is {values.get(field)!r}; make the file with: cos2p profile")
    return values
