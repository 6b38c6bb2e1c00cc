"""Where a study is: cells done, cells running, and how long it will still take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cos2p.studies.grid import Cell, CellOutcome, CellOutcomes
from cos2p.terminal.formatting import count, duration
from cos2p.terminal.progress import Pace

Clock = Callable[[], float]


@dataclass(frozen=True)
class Status:
    share: float = 0.0
    words: str = "starting"


@dataclass
class Running:
    cell: Cell
    status: Status = Status()


class StudyProgress:
    """Counts and estimates, and shows nothing; the classes in `views` override what they show."""

    def __init__(self, jobs: int = 1, clock: Clock = time.monotonic) -> None:
        self.jobs, self._clock = jobs, clock
        self.began = clock()
        self.total = self.done = self.failed = self.kept = 0
        self.running: dict[str, Running] = {}
        self._pace = Pace()

    # ------------------------------------------------------------ what happens

    def begin(self, cells: Sequence[Cell], known: CellOutcomes, later: int) -> None:
        """A batch of cells; those in `known` need not run. `later` more will come in another batch."""
        self.total = self.done + len(cells) + later
        for cell in cells:
            if (outcome := known.get(cell.name)) is not None:
                self._count(outcome)
        self._note()

    def started(self, cell: Cell) -> None:
        self.running[cell.name] = Running(cell)

    def moved(self, cell: Cell, status: Status) -> None:
        if cell.name in self.running:
            self.running[cell.name].status = status
            self._note()

    def ended(self, cell: Cell, outcome: CellOutcome) -> None:
        self.running.pop(cell.name, None)
        self._count(outcome)
        self._note()

    def _count(self, outcome: CellOutcome) -> None:
        self.done += 1
        self.failed += not outcome.ok
        self.kept += outcome.kept

    def _note(self) -> None:
        self._pace.note((self.done - self.kept + self.underway()) / max(1, self.total - self.kept), self._clock())

    def tick(self) -> None:
        """Called a few times a second."""

    # ------------------------------------------------------------ what people ask

    def elapsed(self) -> float:
        return self._clock() - self.began

    def underway(self) -> float:
        """Cells that are running, each by the share of it that is done."""
        return sum(entry.status.share for entry in self.running.values())

    def remaining(self) -> float | None:
        """Wall seconds to the end, at the pace so far; None while there is too little to go by."""
        return self._pace.left(self._clock())

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
