"""Is the run at work, how long has it been, how long still? The log has no wall clock, so that runs are the same
everywhere; the answers come from its file."""

from __future__ import annotations

import fcntl
import time
from bisect import bisect_left
from pathlib import Path

QUIET_SECONDS = 120.0
"""Where files cannot be locked, a log that has been silent for this long is of a run that has stopped."""


def at_work(log: Path) -> bool:
    """Whether a process has the log open to write: it holds a lock that dies with it (`EventLog`)."""
    try:
        with log.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            except OSError:
                return time.time() - log.stat().st_mtime < QUIET_SECONDS
    except OSError:
        return False
    return False


def elapsed(folder: Path) -> float | None:
    """Wall seconds from the last start of the run, when its recipe was written, to its last event."""
    try:
        began, last = ((folder / name).stat().st_mtime for name in ("recipe.toml", "events.jsonl"))
    except OSError:
        return None
    return max(0.0, last - began)


class Pace:
    """Remaining wall seconds from what was seen of the run while watching; its last half, because it changes."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, float]] = []
        """(share done, when), both ascending."""

    def note(self, share: float, at: float) -> None:
        if self._seen and share < self._seen[-1][0]:
            self._seen.clear()  # it was resumed from an earlier state, or begun anew
        if not self._seen or (share > self._seen[-1][0] and at > self._seen[-1][1]):
            self._seen.append((share, at))

    def left(self) -> float | None:
        """As of the last progress seen; a document changes only when the run does."""
        if len(self._seen) < 3 or self._seen[-1][0] >= 1.0:
            return None
        (first, _), (share, at) = self._seen[0], self._seen[-1]
        middle = bisect_left(self._seen, (first + (share - first) / 2, 0.0))
        then_share, then = self._seen[min(middle, len(self._seen) - 2)]
        return max(0.0, (1 - share) * (at - then) / (share - then_share))
