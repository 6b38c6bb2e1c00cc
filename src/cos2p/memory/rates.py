"""Which share of the model a device can train, from its memory and a wanted time per task."""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache

from cos2p.costs.budget import largest_rate
from cos2p.costs.flops import shape_flops
from cos2p.costs.shape import WHOLE, Shape, Tables
from cos2p.costs.workload import Workload
from cos2p.devices.device import Device
from cos2p.errors import BudgetError
from cos2p.models.config import ModelConfig
from cos2p.submodel.rates import LADDER, cut
from cos2p.training.settings import TrainingSettings
from cos2p.units import format_bytes


def choose_rate(
    config: ModelConfig,
    device: Device,
    batch: int,
    training: TrainingSettings,
    target: float,
    samples: int,
    tables: Tables = WHOLE,
) -> float:
    """The largest rate of the ladder that fits the device's memory and the wanted seconds per task (0: any)."""
    workload = cautious_workload(training, min(batch, samples), samples)
    highest = _rungs(config, workload, tables).highest(device.memory)
    for rate in LADDER:
        if rate <= highest and (target == 0 or task_seconds(config, device, rate, workload, tables) <= target):
            return rate
    raise BudgetError(
        f"{device.name} cannot train even {LADDER[-1]:.4f} of the model: {format_bytes(device.memory)} of memory"
        + (f" and {target:g} s per task" if target else "")
        + "; give it a smaller batch, more memory or more time"
    )


class _Rungs:
    """The highest rung of the ladder for any memory. More memory never means a lower one: between two memories of one
    answer nothing has to be searched, so a thousand unequal devices cost a few dozen searches."""

    def __init__(self, config: ModelConfig, workload: Workload, tables: Tables) -> None:
        self._config, self._workload, self._tables = config, workload, tables
        self._known: list[tuple[int, float]] = []
        """(memory, its highest rung), ascending."""

    def highest(self, memory: int) -> float:
        """0.0 if none fits."""
        place = bisect_left(self._known, (memory, 0.0))
        below, above = self._known[max(0, place - 1) : place], self._known[place : place + 1]
        if above and (above[0][0] == memory or (below and below[0][1] == above[0][1])):
            return above[0][1]
        if below and below[0][1] == LADDER[0]:
            return LADDER[0]
        limit = rate_limit(self._config, memory, self._workload, self._tables)
        self._known.insert(place, (memory, next((rate for rate in LADDER if rate <= limit), 0.0)))
        return self._known[place][1]


@lru_cache(maxsize=256)
def _rungs(config: ModelConfig, workload: Workload, tables: Tables) -> _Rungs:
    return _Rungs(config, workload, tables)


def cautious_workload(training: TrainingSettings, batch: int, samples: int) -> Workload:
    """Local training with everything that a method may add: what fits with it fits without."""
    return Workload(
        batch=batch,
        samples=samples,
        epochs=training.epochs,
        optimizer=training.stepper,
        keep_start=True,
        distill=True,
        rescale=True,
        step_in_backward=training.memory_optimizations.step_in_backward,
        recompute=training.memory_optimizations.recompute != "no",
        micro_batch=training.memory_optimizations.at_once(batch),
        activation_bytes=2 if training.memory_optimizations.bf16 else 4,
    )


def rate_limit(config: ModelConfig, memory: int, workload: Workload, tables: Tables = WHOLE) -> float:
    """The largest rate that fits, wherever the fleet's other tiers put their exits; 0.0 if none does."""
    tiers = tuple(sorted({cut(config, rate).blocks for rate in LADDER}))
    return largest_rate(config, memory, workload, tier_blocks=tiers, tables=tables)


def task_seconds(config: ModelConfig, device: Device, rate: float, workload: Workload, tables: Tables = WHOLE) -> float:
    """Training time of one task with the window at the top, where the frozen prefix is longest."""
    shape = Shape.at(config, rate, tables=tables)
    steps = workload.shard / workload.batch * workload.epochs
    flops = shape_flops(config, shape, workload, "prefix") + steps * shape_flops(config, shape, workload, "weight")
    return device.compute_seconds(flops)
