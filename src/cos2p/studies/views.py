"""A study on the screen: a live view in a terminal, plain lines elsewhere, JSON lines for programs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table as Layout
from rich.text import Text

from cos2p.studies.cell_outcome import CellOutcome, CellOutcomes
from cos2p.studies.grid import Cell
from cos2p.studies.process import Status
from cos2p.studies.progress import StudyProgress, View, begin_words
from cos2p.studies.tuning import is_trial
from cos2p.terminal.formatting import duration, percent, printable

PLAIN_SECONDS = 60.0
"""Between two plain lines about the cells that are running."""


def outcome_words(cell: Cell, outcome: CellOutcome) -> str:
    """A finished cell in a few words."""
    if outcome.result is None:
        return f"failed: {printable(outcome.failure)}"
    prefix, part = ("validation_", " on validation data") if is_trial(cell.recipe) else ("", "")
    server, clients = _score_words(outcome.result, prefix), _score_words(outcome.result, "client_")
    return f"server {server}{part}, clients {clients}, {duration(outcome.seconds)}"


def _score_words(result: Mapping[str, Any], prefix: str) -> str:
    perplexity = result.get(f"{prefix}perplexity")
    return percent(result.get(f"{prefix}top1")) if perplexity is None else f"perplexity {perplexity:.4g}"


class PlainView(View):
    """For logs and pipes: a line for each finished cell, and now and then one for those at work."""

    def __init__(self, console: Console, progress: StudyProgress, verbose: bool = False) -> None:
        super().__init__(progress)
        self.console, self.verbose = console, verbose
        self._told = 0.0

    def begin(self, cells: Sequence[Cell], known: CellOutcomes, later: int) -> None:
        first = self.progress.total == 0
        super().begin(cells, known, later)
        if first:
            self.say(begin_words(self.progress))

    def started(self, cell: Cell) -> None:
        super().started(cell)
        if self.verbose:
            self.say(f"{cell.name}: started")

    def ended(self, cell: Cell, outcome: CellOutcome) -> None:
        super().ended(cell, outcome)
        progress = self.progress
        self.say(f"{progress.done}/{progress.total} {cell.name}: {outcome_words(cell, outcome)} · {self._left()}")

    def tick(self) -> None:
        elapsed = self.progress.elapsed()
        if elapsed - self._told < PLAIN_SECONDS:
            return
        self._told = elapsed
        for entry in self.progress.running.values():
            self.say(f"{entry.cell.name}: {entry.status.words} · {self._left()}")

    def _left(self) -> str:
        return self.progress.remaining_words()

    def say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


class LiveView(View):
    """For a terminal: how far the study is and a line for each running cell, redrawn four times a second."""

    def __init__(self, console: Console, progress: StudyProgress, title: str, verbose: bool = False) -> None:
        super().__init__(progress)
        self.console, self.title, self.verbose = console, title, verbose
        self._lock = threading.RLock()  # the screen is drawn by a thread of its own
        self.live = Live(get_renderable=self.draw, console=console, refresh_per_second=4, transient=True)

    def begin(self, cells: Sequence[Cell], known: CellOutcomes, later: int) -> None:
        with self._lock:
            super().begin(cells, known, later)

    def started(self, cell: Cell) -> None:
        with self._lock:
            super().started(cell)

    def moved(self, cell: Cell, status: Status) -> None:
        with self._lock:
            super().moved(cell, status)

    def ended(self, cell: Cell, outcome: CellOutcome) -> None:
        with self._lock:
            super().ended(cell, outcome)
        if self.verbose or not outcome.ok:
            line = f"{cell.name}: {outcome_words(cell, outcome)}"
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def draw(self) -> Group:
        with self._lock:
            progress = self.progress
            share = sum(entry.status.share for entry in progress.running.values())
            head = Layout.grid(padding=(0, 1))
            head.add_row(
                Text(printable(self.title), style="bold"),
                ProgressBar(total=max(1, progress.total), completed=progress.done + share, width=28),
                Text(progress.count_words()),
                Text(f"{duration(progress.elapsed())} · {progress.remaining_words()}", style="dim"),
            )
            cells = Layout.grid(padding=(0, 1))
            for entry in progress.running.values():
                bar = ProgressBar(total=1.0, completed=entry.status.share, width=12)
                cells.add_row(Text(f"  {entry.cell.name}"), bar, Text(entry.status.words, style="dim"))
            return Group(head, cells)


class JsonView(View):
    """For programs: a cell that ended is one object."""

    def __init__(self, progress: StudyProgress, say: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__(progress)
        self._say = say

    def ended(self, cell: Cell, outcome: CellOutcome) -> None:
        super().ended(cell, outcome)
        self._say(
            {
                "kind": "cell",
                "cell": cell.name,
                "row": cell.row,
                "seed": cell.seed,
                "ok": outcome.ok,
                "failure": outcome.failure,
                "seconds": round(outcome.seconds, 3),
                "done": self.progress.done,
                "total": self.progress.total,
            }
        )


@contextmanager
def showing(console: Console, title: str, jobs: int, verbose: bool = False) -> Iterator[View]:
    """A view on the console: live if it is a terminal, else plain lines."""
    progress = StudyProgress(jobs)
    if console.is_terminal and not console.is_dumb_terminal:
        view = LiveView(console, progress, title, verbose)
        with view.live:
            yield view
    else:
        yield PlainView(console, progress, verbose)
