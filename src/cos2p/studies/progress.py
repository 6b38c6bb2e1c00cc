"""Where a study is: cells done, cells running, and how long it will still take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cos2p.studies.grid import Cell, CellOutcome, CellOutcomes
from cos2p.terminal.formatting import count, duration

Clock = Callable[[], float]


@dataclass(frozen=True)
class Status:
    share: float
    words: str
    remaining: float | None
    """Wall seconds, as far as the run can estimate them."""


@dataclass
class Running:
    cell: Cell
    since: float
    status: Status = field(default_factory=lambda: Status(0.0, "starting", None))


class StudyProgress:
    """Counts and estimates, and shows nothing; the classes in `views` override what they show."""

    def __init__(self, jobs: int = 1, clock: Clock = time.monotonic) -> None:
        self.jobs, self._clock = jobs, clock
        self.began = clock()
        self.total = self.done = self.failed = self.kept = 0
        self.running: dict[str, Running] = {}
        self._waiting: dict[str, Cell] = {}
        self._later = 0
        self._seconds: dict[str, list[float]] = {}
        """Wall seconds of finished cells, by row: methods differ much more than seeds."""

    # ------------------------------------------------------------ what happens

    def begin(self, cells: Sequence[Cell], known: CellOutcomes, later: int) -> None:
        """A batch of cells; those in `known` need not run. `later` more will come in another batch."""
        self.total = self.done + len(cells) + later
        self._later = later
        for cell in cells:
            outcome = known.get(cell.name)
            if outcome is None:
                self._waiting[cell.name] = cell
            else:
                self._count(outcome)
                self._learn(cell, float((outcome.result or {}).get("wall_seconds") or 0.0))

    def started(self, cell: Cell) -> None:
        self._waiting.pop(cell.name, None)
        self.running[cell.name] = Running(cell, self._clock())

    def moved(self, cell: Cell, status: Status) -> None:
        if cell.name in self.running:
            self.running[cell.name].status = status

    def ended(self, cell: Cell, outcome: CellOutcome) -> None:
        self.running.pop(cell.name, None)
        self._count(outcome)
        if outcome.ok:
            self._learn(cell, outcome.seconds)

    def _count(self, outcome: CellOutcome) -> None:
        self.done += 1
        self.failed += not outcome.ok
        self.kept += outcome.kept

    def _learn(self, cell: Cell, seconds: float) -> None:
        if seconds > 0:
            self._seconds.setdefault(cell.row, []).append(seconds)

    def tick(self) -> None:
        """Called a few times a second."""

    # ------------------------------------------------------------ what people ask

    def elapsed(self) -> float:
        return self._clock() - self.began

    def remaining(self) -> float | None:
        """Wall seconds to the end; None while there is nothing to go by.

        A cell is expected to take as long as others of its row did, else as the average cell; a running one knows
        best itself. The last cells cannot be shared between jobs, so the longest of them is the least it can take.
        """
        running = [self._left(entry) for entry in self.running.values()]
        known = [seconds for seconds in running if seconds is not None]
        typical = self._typical()
        if typical is None and (self._waiting or self._later or len(known) < len(running)):
            return None
        waiting = [self._expected(cell) or 0.0 for cell in self._waiting.values()]
        todo = [*known, *waiting, *[typical or 0.0] * self._later]
        return max(sum(todo) / self.jobs, max(todo, default=0.0))

    def _left(self, entry: Running) -> float | None:
        if entry.status.remaining is not None:
            return entry.status.remaining
        expected = self._expected(entry.cell)
        return None if expected is None else max(0.0, expected - (self._clock() - entry.since))

    def _expected(self, cell: Cell) -> float | None:
        return statistics.mean(self._seconds[cell.row]) if cell.row in self._seconds else self._typical()

    def _typical(self) -> float | None:
        """The average over rows; before any cell is finished, what the running ones will have taken."""
        rows = [statistics.mean(seconds) for seconds in self._seconds.values()]
        if not rows:
            now = self._clock()
            rows = [
                now - entry.since + entry.status.remaining
                for entry in self.running.values()
                if entry.status.remaining is not None
            ]
        return statistics.mean(rows) if rows else None

    # ------------------------------------------------------------ in words

    def begin_text(self) -> str:
        before = f", {self.kept} finished before" if self.kept else ""
        return f"{count(self.total, 'cell')}, {self.jobs} at once{before}"

    def count_text(self) -> str:
        parts = [f"{self.done}/{self.total} cells"]
        parts += [f"{self.kept} from before"] if self.kept else []
        parts += [f"{self.failed} failed"] if self.failed else []
        return ", ".join(parts)

    def remaining_text(self) -> str:
        if self.done >= self.total:
            return "done"
        left = self.remaining()
        return f"about {duration(left)} left" if left is not None else "estimating the time"
