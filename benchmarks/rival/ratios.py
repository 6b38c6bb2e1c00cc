"""From measured tasks to a run: seconds, bytes and peak of one tier of devices, and Co-S²P's over its rival's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from benchmarks.rival.cells import Cell, Cells, Wanted, measured_starts
from benchmarks.rival.forms import MASK_ROUNDS, RIVAL, ROUNDS
from benchmarks.rival.plans import Tier, plan, positions


@dataclass(frozen=True)
class Cost:
    """The mean task of a tier."""

    seconds: float
    """Of the processor, for as many samples as were measured with."""
    flops: float
    mask_flops: float
    down: float
    up: float
    peak: float
    """The largest that was measured, at the small batch."""
    full_peak: float
    """The largest by the ledger, at the recipe's batches."""

    @property
    def both_ways(self) -> float:
        return self.down + self.up


def mean(parts: Iterable[tuple[float, Cost]]) -> Cost:
    """Weighed; of peaks the largest."""
    weighed = list(parts)
    total = sum(weight for weight, _ in weighed)

    def over(field: str) -> float:
        return sum(weight * float(getattr(cost, field)) for weight, cost in weighed) / total

    def most(field: str) -> float:
        return max(float(getattr(cost, field)) for _, cost in weighed)

    means = (over(name) for name in ("seconds", "flops", "mask_flops", "down", "up"))
    return Cost(*means, peak=most("peak"), full_peak=most("full_peak"))


def rival(cells: Cells, tier: Tier) -> Cost | None:
    cell = cells[Wanted(tier, RIVAL, False, 0)]
    return None if cell is None else _cost(cell, 1.0, tier, RIVAL, False, 0)


def of_kind(cells: Cells, tier: Tier, form: str, trains_masks: bool) -> Cost | None:
    """The mean over the window positions of a run, of tasks with or without masks to train.

    A position that was not measured takes the seconds of the nearest that was, by the ratio of their FLOPs.
    """
    measured = {start: cells[Wanted(tier, form, trains_masks, start)] for start in measured_starts(tier, trains_masks)}
    parts = []
    for start, share in positions(tier, form).items():
        near = start if start in measured else max(measured)
        cell = measured[near]
        if cell is None or cell.failure:
            return None
        scale = plan(tier, form, trains_masks, start).flops / plan(tier, form, trains_masks, near).flops
        parts.append((share, _cost(cell, scale, tier, form, trains_masks, start)))
    return mean(parts)


def modelled(tier: Tier, form: str, trains_masks: bool) -> Cost:
    """The mean task by the cost model alone: no seconds, no measured peak."""
    if form == RIVAL:
        return _by_model(tier, form, False, 0)
    return mean((share, _by_model(tier, form, trains_masks, start)) for start, share in positions(tier, form).items())


def modelled_run(tier: Tier, form: str) -> Cost:
    first, later = (modelled(tier, form, trains_masks) for trains_masks in (True, False))
    return mean(((MASK_ROUNDS, first), (ROUNDS - MASK_ROUNDS, later)))


def of_run(cells: Cells, tier: Tier, form: str) -> Cost | None:
    """Over all rounds: masks train in the first ones."""
    first, later = (of_kind(cells, tier, form, trains_masks) for trains_masks in (True, False))
    if first is None or later is None:
        return None
    return mean(((MASK_ROUNDS, first), (ROUNDS - MASK_ROUNDS, later)))


def _cost(cell: Cell, scale: float, tier: Tier, form: str, trains_masks: bool, start: int) -> Cost:
    known = _by_model(tier, form, trains_masks, start)
    return replace(known, seconds=cell.cpu_seconds * scale, peak=cell.peak)


def _by_model(tier: Tier, form: str, trains_masks: bool, start: int) -> Cost:
    found = plan(tier, form, trains_masks, start)
    return Cost(0.0, found.flops, found.mask_flops, found.down, found.up, peak=0.0, full_peak=found.peak)
