"""One lane per device: what it did from the first second to the last, without gaps or overlaps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cos2p.tracking.event_kinds import (
    Aggregated,
    Arrived,
    DeviceEvent,
    Dispatched,
    Dropped,
    Event,
    Excluded,
    Failed,
    Joined,
    Left,
    Lost,
    Merged,
    Refused,
)
from cos2p.view.devices import Roster

PHASES = ("download", "prefix", "masks", "training", "upload", "idle", "late", "dead", "absent")
"""A device's activities.

prefix: the pass through the frozen blocks. masks: the mask phase. late: past the server's deadline, or on a fleet at an
open task twice as long as the device's usual. dead: restarting, or silent. absent: not here yet,
left, or excluded after failures. A fleet counts prefix and masks as training.
"""
PHASE = {name: number for number, name in enumerate(PHASES)}

OUTCOMES = ("open", "merged", "refused", "dropped", "failed", "lost")
"""The ends of a task.

open: still under way (or when the run ended). refused: the update did not pass the checks. dropped: too late, or
answered twice. failed: the training came to nothing. lost: the device restarted or left with it.
"""
OUTCOME = {name: number for number, name in enumerate(OUTCOMES)}
NO_TASK = -1
WORK = ("download", "prefix", "masks", "training", "upload")

STEPS_PER_TASK = 1000
"""Ticks of a typical task, at least: finer than a screen can show, coarse enough to be short when written."""
LATE_FACTOR = 2.0
"""On a fleet, an open task is late when it takes this many times the device's usual."""


@dataclass
class _Open:
    name: str
    number: int
    start: float
    seconds: dict[str, float]
    """Its phases as planned; empty on a fleet, which cannot know."""


@dataclass
class _Lane:
    end: list[float] = field(default_factory=list)
    """When each segment ends; it begins where the one before ends."""
    phase: list[int] = field(default_factory=list)
    task: list[int] = field(default_factory=list)
    version: list[int] = field(default_factory=list)
    tau: list[int | None] = field(default_factory=list)
    outcome: list[int] = field(default_factory=list)
    between: int = PHASE["absent"]
    """Its phase while it has no task."""
    open: _Open | None = None
    numbers: dict[str, int] = field(default_factory=dict)
    """Task → its number in this lane."""
    worked: float = 0.0
    """Seconds of all its closed tasks."""

    def reach(self) -> float:
        return self.end[-1] if self.end else 0.0

    def add(self, until: float, phase: int, task: int = NO_TASK) -> None:
        if until <= self.reach():
            return
        if self.phase and self.phase[-1] == phase and self.task[-1] == task:
            self.end[-1] = until
        else:
            self.end.append(until)
            self.phase.append(phase)
            self.task.append(task)


class LanesBuilder:
    def __init__(self, roster: Roster, deadline: float | None = None) -> None:
        self._roster, self._deadline = roster, deadline
        self._lanes: list[_Lane] = []
        self._version = 0
        self._now = 0.0

    def feed(self, event: Event) -> None:
        self._now = max(self._now, event.t)
        if isinstance(event, Aggregated):
            self._version = event.version
        handler = getattr(self, f"_on_{event.kind}", None)
        if handler is not None and isinstance(event, DeviceEvent):
            handler(self._lane(event.client), event)

    def _lane(self, client: str) -> _Lane:
        number = self._roster.index(client)
        while len(self._lanes) <= number:
            self._lanes.append(_Lane())
        return self._lanes[number]

    # ------------------------------------------------------------ what the events mean

    def _on_joined(self, lane: _Lane, event: Joined) -> None:
        self._close(lane, "lost")  # who joins has nothing in hand
        lane.add(self._now, lane.between)
        lane.between = PHASE["idle"]

    def _on_dispatched(self, lane: _Lane, event: Dispatched) -> None:
        self._close(lane, "lost")
        lane.add(self._now, lane.between)
        lane.between = PHASE["idle"]
        number = len(lane.version)
        lane.numbers[event.task] = number
        lane.version.append(event.version)
        lane.tau.append(None)
        lane.outcome.append(OUTCOME["open"])
        lane.open = _Open(event.task, number, self._now, event.seconds or {})

    def _on_arrived(self, lane: _Lane, event: Arrived) -> None:
        if lane.open is not None and lane.open.name == event.task:
            self._close(lane, "open", _measured(event, self._now - lane.open.start))
        elif lane.open is None:  # thought to be gone, and here all the same
            lane.add(self._now, lane.between)
            lane.between = PHASE["idle"]

    def _on_merged(self, lane: _Lane, event: Merged) -> None:
        self._set_outcome(lane, event, "merged", event.staleness)

    def _on_refused(self, lane: _Lane, event: Refused) -> None:
        if lane.open is not None and lane.open.name == event.task:
            self._close(lane, "refused")
        else:
            self._set_outcome(lane, event, "refused")

    def _on_dropped(self, lane: _Lane, event: Dropped) -> None:
        self._set_outcome(lane, event, "dropped")

    def _on_failed(self, lane: _Lane, event: Failed) -> None:
        if lane.open is not None and lane.open.name == event.task:
            self._close(lane, "failed")

    def _on_lost(self, lane: _Lane, event: Lost) -> None:
        self._close(lane, "lost")
        lane.between = PHASE["dead"]

    def _on_left(self, lane: _Lane, event: Left) -> None:
        """Left of its own will, or silent; one that leaves while it restarts stays dead."""
        self._close(lane, "lost")
        lane.add(self._now, lane.between)
        if lane.between != PHASE["dead"]:
            lane.between = PHASE["dead" if event.reason else "absent"]

    def _on_excluded(self, lane: _Lane, event: Excluded) -> None:
        if lane.open is None:
            lane.add(self._now, lane.between)
        lane.between = PHASE["absent"]

    # ------------------------------------------------------------ tasks

    def _close(self, lane: _Lane, outcome: str, seconds: dict[str, float] | None = None) -> None:
        task = lane.open
        if task is None:
            return
        lane.open = None
        for until, phase in self._segments(task, self._now, seconds or task.seconds):
            lane.add(until, phase, task.number)
        lane.worked += self._now - task.start
        if lane.outcome[task.number] == OUTCOME["open"]:
            lane.outcome[task.number] = OUTCOME[outcome]

    def _set_outcome(
        self, lane: _Lane, event: Merged | Refused | Dropped, outcome: str, tau: int | None = None
    ) -> None:
        number = lane.numbers.get(event.task)
        if number is None:
            return
        if lane.outcome[number] in (OUTCOME["open"], OUTCOME["lost"]):  # a second answer does not undo the first
            lane.outcome[number], lane.tau[number] = OUTCOME[outcome], tau

    def _segments(
        self, task: _Open, until: float, seconds: dict[str, float], late_after: float | None = None
    ) -> list[tuple[float, int]]:
        """(end, phase) of the task's parts, cut at `until`; what goes on past the deadline is late."""
        parts: list[tuple[float, int]] = []
        at = task.start
        for name in WORK:
            length = seconds.get(name)
            if length:
                at += length
                parts.append((min(at, until), PHASE[name]))
        if not parts:
            parts = [(until, PHASE["training"])]
        elif parts[-1][0] < until:
            parts[-1] = (until, parts[-1][1])  # rounding, or a part that nobody measured
        limits = [limit for limit in (self._deadline, late_after) if limit is not None]
        limit = task.start + min(limits, default=math.inf)
        if until <= limit:
            return parts
        kept = [(min(end, limit), phase) for end, phase in parts]
        return [*kept, (until, PHASE["late"])]

    # ------------------------------------------------------------ the document

    def document(self) -> dict[str, Any]:
        tick = self._tick()
        end = round(self._now / tick)
        for index in range(len(self._roster)):
            self._lane(self._roster.names[index])
        return {
            "tick": tick,  # seconds
            "end": end,  # ticks of the whole run so far
            "phases": list(PHASES),
            "outcomes": list(OUTCOMES),
            "lanes": [self._written(lane, tick) for lane in self._lanes],
        }

    def _tick(self) -> float:
        tasks = sum(len(lane.version) for lane in self._lanes)
        worked = sum(lane.worked for lane in self._lanes) or self._now
        typical = worked / max(1, tasks)
        return float(10.0 ** math.floor(math.log10(typical / STEPS_PER_TASK))) if typical > 0 else 0.001

    def _written(self, lane: _Lane, tick: float) -> dict[str, list[Any]]:
        """Segment i lasts `length[i]` ticks and follows the last, without gaps, from 0 to the end."""
        tail = self._tail(lane)
        ends = np.rint(np.array([*lane.end, *(part[0] for part in tail)], dtype=np.float64) / tick).astype(np.int64)
        phases = np.array([*lane.phase, *(part[1] for part in tail)], dtype=np.int64)
        tasks = np.array([*lane.task, *(part[2] for part in tail)], dtype=np.int64)
        seen = np.diff(ends, prepend=0) > 0
        ends, phases, tasks = ends[seen], phases[seen], tasks[seen]
        last = np.append((np.diff(phases) != 0) | (np.diff(tasks) != 0), True)[: len(ends)]  # of equal ones in a row
        tau = list(lane.tau)
        if lane.open is not None:
            tau[lane.open.number] = self._version - lane.version[lane.open.number]
        return {
            "length": np.diff(ends[last], prepend=0).tolist(),
            "phase": phases[last].tolist(),
            "task": tasks[last].tolist(),  # number in the columns below; −1 where there is no task
            "version": list(lane.version),  # that each task was cut from
            "tau": tau,  # when it was merged, of an open task by now; null if it was not
            "outcome": list(lane.outcome),
        }

    def _tail(self, lane: _Lane) -> list[tuple[float, int, int]]:
        """(end, phase, task) of what is going on now, which the next event may still change."""
        if lane.open is None:
            return [(self._now, lane.between, NO_TASK)] if self._now > lane.reach() else []
        task, usual = lane.open, None
        if not task.seconds and task.number:
            usual = LATE_FACTOR * lane.worked / task.number
        return [(until, phase, task.number) for until, phase in self._segments(task, self._now, task.seconds, usual)]


def _measured(event: Arrived, total: float) -> dict[str, float]:
    """A fleet's own seconds. What is missing to the whole was spent on the way to the device."""
    found = event.measured or {}
    seconds = {name: float(found[name]) for name in ("training", "upload") if isinstance(found.get(name), int | float)}
    if not seconds:
        return {}
    rest = total - sum(seconds.values())
    if rest < 0:  # clocks differ
        return {name: length * total / sum(seconds.values()) for name, length in seconds.items()}
    return {"download": rest, **seconds}
