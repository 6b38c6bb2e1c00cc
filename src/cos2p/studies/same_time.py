"""What a method can do in the time of another: how a run went, and how many updates to plan so that it ends by then.

A run that is cut off before its end is a poor witness: its step has not come down, and a head that is told at the end
is not there yet. So a method is planned for the time instead, from the pace of its own run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from cos2p.tracking.event_kinds import Aggregated, Evaluated
from cos2p.tracking.events import read_events
from cos2p.tracking.figure_parts import deepest

LONGEST = 8
"""A faster method is given at most so many times its updates."""


@dataclass(frozen=True)
class Course:
    """How a finished run went."""

    scores: Sequence[tuple[float, float]] = ()
    """(virtual second, server's top-1), in order."""
    rounds: Sequence[tuple[float, int]] = ()
    """(virtual second, updates merged by then) at the end of each round."""


def read_course(run: Path) -> Course:
    """From a run's log."""
    scores, rounds, merged = [], [], 0
    for event in read_events(run / "events.jsonl"):
        if isinstance(event, Evaluated) and "top1" in deepest(event.test):
            scores.append((event.t, deepest(event.test)["top1"]))
        elif isinstance(event, Aggregated):
            merged += event.updates
            rounds.append((event.t, merged))
    return Course(scores, rounds)


def updates_in(courses: Sequence[Course], seconds: float, step: int, *, told_last: bool) -> int | None:
    """The most updates that the method does in so many seconds, on the average of its runs; None: too few to train.

    By `step`, a task for each device, more or fewer than these runs had. Of runs whose last round tells
    (`told_last`), that round is kept, and the first, which may tell as well, is followed by one at least that trains.

    >>> run = Course(rounds=[(1.0, 8), (5.0, 16), (9.0, 24), (10.0, 32)])
    >>> [updates_in([run], seconds, 8, told_last=True) for seconds in (5.9, 6.0, 9.9, 14.0)]
    [None, 24, 24, 40]
    """
    if not courses or not all(course.rounds for course in courses):
        return None
    had = round(fmean(course.rounds[-1][1] for course in courses))
    least = 3 * step if told_last else step
    fewest = had - max(0, (had - least) // step) * step
    found = None
    for updates in range(fewest, LONGEST * had + 1, step):
        if fmean(seconds_for(course, updates, told_last=told_last) for course in courses) > seconds:
            break
        found = updates
    return found


def seconds_for(course: Course, updates: int, *, told_last: bool) -> float:
    """When a run like this one would end, had it been planned for so many updates."""
    training, last = list(course.rounds), (0.0, 0)
    if told_last and len(training) > 1:
        end = training.pop()
        last = (end[0] - training[-1][0], end[1] - training[-1][1])
    wanted = updates - last[1]
    for at, merged in training:
        if merged >= wanted:
            return at + last[0]
    (begun, first), (ended, merged) = training[(len(training) - 1) // 2], training[-1]
    if merged == first:
        begun, first = 0.0, 0
    return ended + (ended - begun) / (merged - first) * (wanted - merged) + last[0]
