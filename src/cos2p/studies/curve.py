"""How a run's accuracy rose with what it spent: from its log, a point for every version that was evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cos2p.tracking.event_kinds import Aggregated, Arrived, Dispatched, Evaluated, Finished
from cos2p.tracking.events import read_events
from cos2p.tracking.figure_parts import deepest

WORK = ("prefix", "masks", "training")
"""Of a task's seconds those in which the device's processor is busy; the others are its network's."""


@dataclass(frozen=True)
class Spent:
    """What the fleet had spent when a version of the model was made."""

    updates: int = 0
    virtual_seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    processor_seconds: float | None = None
    """Of all devices together, of the tasks that were done by then; a real fleet's log does not have them."""


@dataclass(frozen=True)
class Point:
    spent: Spent
    top1: float
    """Of the server's model at its deepest exit; before the run's end on `schedule.evaluate_samples` test samples."""

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self.spent), "top1": self.top1}


Curve = Sequence[Point]


def read_curve(run: Path) -> Curve:
    """In the order of the versions. Scores arrive later than their version, so they are put where it was made."""
    versions = {0: Spent()}
    scores: dict[int, float] = {}
    work: dict[str, float | None] = {}
    updates = up = down = 0
    seconds: float | None = 0.0
    for event in read_events(run / "events.jsonl"):
        if isinstance(event, Dispatched):
            down += event.bytes
            work[event.task] = None if event.seconds is None else sum(event.seconds.get(part, 0.0) for part in WORK)
        elif isinstance(event, Arrived):
            up += event.bytes
            own = work.pop(event.task, None)
            seconds = None if seconds is None or own is None else seconds + own
        elif isinstance(event, Aggregated):
            updates += event.updates
            versions[event.version] = Spent(updates, event.t, up, down, seconds)
        elif isinstance(event, Evaluated | Finished) and "top1" in deepest(event.test):
            scores[event.version] = deepest(event.test)["top1"]
    return [Point(versions[version], scores[version]) for version in sorted(scores) if version in versions]


def spent_until(curve: Curve, top1: float) -> Spent | None:
    """What had been spent at the first evaluation with this accuracy; None if there was none."""
    return next((point.spent for point in curve if point.top1 >= top1), None)
