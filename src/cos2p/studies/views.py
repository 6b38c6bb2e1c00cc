"""A study on the screen: a live view in a terminal, plain lines elsewhere, JSON for programs; its tables at its end."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table as Layout
from rich.text import Text

from cos2p.studies.grid import Cell, CellOutcome, CellOutcomes
from cos2p.studies.progress import StudyProgress
from cos2p.studies.report import Report
from cos2p.studies.tables import Table, baseline_notes
from cos2p.studies.tuning import is_trial
from cos2p.terminal.formatting import duration, percent, print_line, printable

PLAIN_SECONDS = 60.0
"""Between two plain lines about the cells that are running."""


def outcome_text(cell: Cell, outcome: CellOutcome) -> str:
    """A finished cell in a few words."""
    if outcome.result is None:
        return f"failed: {printable(outcome.failure)}"
    prefix, part = ("validation_", " on validation data") if is_trial(cell.recipe) else ("", "")
    server, clients = _score_text(outcome.result, prefix), _score_text(outcome.result, "client_")
    return f"server {server}{part}, clients {clients}, {duration(outcome.seconds)}"


def _score_text(result: Mapping[str, Any], prefix: str) -> str:
    perplexity = result.get(f"{prefix}perplexity")
    return percent(result.get(f"{prefix}top1")) if perplexity is None else f"perplexity {perplexity:.4g}"


class PlainView(StudyProgress):
    """For logs and pipes: a line for each finished cell, and now and then one for those at work."""

    def __init__(
        self, console: Console, jobs: int = 1, verbose: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(jobs, clock)
        self.console, self.verbose = console, verbose
        self._shown = 0.0

    def begin(self, cells: Sequence[Cell], known: CellOutcomes, later: int) -> None:
        first = self.total == 0
        super().begin(cells, known, later)
        if first:
            print_line(self.console, self.begin_text())

    def started(self, cell: Cell) -> None:
        super().started(cell)
        if self.verbose:
            print_line(self.console, f"{cell.name}: started")

    def ended(self, cell: Cell, outcome: CellOutcome) -> None:
        super().ended(cell, outcome)
        words = f"{outcome_text(cell, outcome)} · {self.remaining_text()}"
        print_line(self.console, f"{self.done}/{self.total} {cell.name}: {words}")

    def tick(self) -> None:
        if self.elapsed() - self._shown < PLAIN_SECONDS:
            return
        self._shown = self.elapsed()
        for entry in self.running.values():
            print_line(self.console, f"{entry.cell.name}: {entry.status.words} · {self.remaining_text()}")


class LiveView(StudyProgress):
    """For a terminal: how far the study is and a line for each running cell, redrawn at every tick."""

    def __init__(self, console: Console, title: str, jobs: int = 1, verbose: bool = False) -> None:
        super().__init__(jobs)
        self.console, self.title, self.verbose = console, title, verbose
        self.live = Live(get_renderable=self.draw, console=console, auto_refresh=False, transient=True)

    def ended(self, cell: Cell, outcome: CellOutcome) -> None:
        super().ended(cell, outcome)
        if self.verbose or not outcome.ok:
            print_line(self.console, f"{cell.name}: {outcome_text(cell, outcome)}")

    def tick(self) -> None:
        self.live.refresh()

    def draw(self) -> Group:
        head = Layout.grid(padding=(0, 1))
        head.add_row(
            Text(printable(self.title), style="bold"),
            ProgressBar(total=max(1, self.total), completed=self.done + self.underway(), width=28),
            Text(self.count_text()),
            Text(f"{duration(self.elapsed())} · {self.remaining_text()}", style="dim"),
        )
        cells = Layout.grid(padding=(0, 1))
        for entry in self.running.values():
            bar = ProgressBar(total=1.0, completed=entry.status.share, width=12)
            cells.add_row(Text(f"  {entry.cell.name}"), bar, Text(entry.status.words, style="dim"))
        return Group(head, cells)


class JsonView(StudyProgress):
    """For programs: a cell that ended is one object."""

    def __init__(self, say: Callable[[Mapping[str, Any]], None], jobs: int = 1) -> None:
        super().__init__(jobs)
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
                "done": self.done,
                "total": self.total,
            }
        )


@contextmanager
def showing(console: Console, title: str, jobs: int, verbose: bool = False) -> Iterator[StudyProgress]:
    """A view on the console: live if it is a terminal, else plain lines."""
    if console.is_terminal and not console.is_dumb_terminal:
        view = LiveView(console, title, jobs, verbose)
        with view.live:
            yield view
    else:
        yield PlainView(console, jobs, verbose)


# ---------------------------------------------------------------- at its end

MAIN_COLUMNS = ("perplexity", "client_perplexity", "answers", "top1", "f1", "client_top1", "ru", "virtual_seconds")


def summary(report: Report, folder: Path) -> RenderableType:
    """Each table with the columns that matter most, and the files that have the rest."""
    parts: list[RenderableType] = [Text(printable(report.title), style="bold")]
    for table in report.tables:
        parts += [Text(f"\n{printable(table.title)}"), _table(table)]
    notes = [text for name, text in report.provenance() if name == "note"]
    notes += dict.fromkeys(note for table in report.tables for note in baseline_notes(table.baselines))
    parts += [Text(printable(note), style="dim") for note in notes]
    tables = [f"{table.name}.csv" for table in report.tables]
    names = ["table.md", "report.html", "study.json", *tables, "runs.csv"]
    there = [name for name in names if (folder / name).exists()]
    parts.append(Text(f"\nin {shlex.quote(str(folder))}: {', '.join(there)}"))
    return Group(*parts)


def _table(table: Table) -> Layout:
    layout = Layout(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    columns = [column for column in table.columns if column.key in MAIN_COLUMNS] or list(table.columns)
    layout.add_column("")
    for column in columns:
        layout.add_column(column.heading, justify="right", no_wrap=True)
    for line in table.lines:
        figures = [line.figures[column.key] for column in columns]
        texts = [
            Text(figure.write(column), style="bold" if figure.best else "")
            for column, figure in zip(columns, figures, strict=True)
        ]
        layout.add_row(Text(f"{printable(line.title)} {line.marks}".rstrip()), *texts)
    return layout
