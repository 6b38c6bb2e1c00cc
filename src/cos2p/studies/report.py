"""A study's report: its tables, where they come from, and everything that went wrong on the way."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from cos2p.studies.grid import Base, CellOutcome, CellOutcomes, Execute, Grid, Row, RunnableGrid, make_grid
from cos2p.studies.tables import MISSING, Line, Table
from cos2p.studies.tuning import Search, settle


@dataclass(frozen=True)
class Report:
    kind: str
    """compare, ablate, sweep, frontier or attack"""
    title: str
    recipe: str
    command: str
    updates: int
    """Client updates of a run, the measure that makes rows comparable."""
    grid: Grid
    outcomes: CellOutcomes
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()
    tuning: Mapping[str, Any] | None = None
    axes: Mapping[str, Any] = field(default_factory=dict)
    """Axes of a sweep: name → path and values."""

    @property
    def done(self) -> int:
        return sum(name in self.outcomes for name in self.grid.places)

    @property
    def failures(self) -> dict[str, str]:
        found = ((name, self.outcomes.get(name)) for name in self.grid.places)
        return {name: outcome.failure for name, outcome in found if outcome is not None and not outcome.ok}

    def runs(self) -> Iterator[tuple[Row, int, str, CellOutcome]]:
        """Every row and seed that has run or failed, with the name of its cell."""
        for row in self.grid.rows:
            for seed in self.grid.seeds:
                name = self.grid.name(row.key, seed)
                if (outcome := self.outcomes.get(name)) is not None:
                    yield row, seed, name, outcome

    def provenance(self) -> list[tuple[str, str]]:
        """All that a reader needs to get the same figures."""
        total = len(self.grid.places)
        entries = [
            ("recipe", self.recipe),
            ("command", self.command),
            ("seeds", ", ".join(map(str, self.grid.seeds))),
            ("client updates", self._updates()),
            ("runs", f"{total}" if self.done == total else f"{self.done} of {total} so far"),
            ("versions", "; ".join(self.versions()) or "–"),
        ]
        return [*entries, *(("note", note) for note in [*self.notes, *self._short_runs()])]

    def _updates(self) -> str:
        lengths = [f"{length:,}" for length in self._lengths()]
        return f"{lengths[0]} in every run" if len(lengths) == 1 else ", ".join(lengths)

    def _lengths(self) -> list[int]:
        """Client updates of the runs, each number once."""
        return sorted(set(self.grid.planned.values()))

    def versions(self) -> list[str]:
        """Versions of the programs that made the runs; more than one line if the study went on after an update."""
        found = [outcome.result.get("versions", {}) for outcome in self.outcomes.values() if outcome.result]
        return sorted({", ".join(f"{name} {number}" for name, number in sorted(v.items())) for v in found if v})

    def _short_runs(self) -> list[str]:
        """Runs that ended before their updates were done: the comparison is not fair to them, or not by them."""
        short = []
        for name, planned in self.grid.planned.items():
            outcome = self.outcomes.get(name)
            if outcome is None or outcome.result is None:
                continue
            updates = outcome.result.get("updates", planned)
            if updates < planned:
                why = outcome.result.get("finished", "")
                short.append(f"{name} had {updates:,} of {planned:,} updates{f' ({why})' if why else ''}")
        return short

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "title": self.title,
            "recipe": self.recipe,
            "command": self.command,
            "updates": self.updates,
            "lengths": self._lengths(),
            "seeds": list(self.grid.seeds),
            "versions": self.versions(),
            "notes": list(self.notes),
            "short_runs": self._short_runs(),
            "axes": dict(self.axes),
            "tuning": self.tuning,
            "cells": [self._cell(name, *place) for name, place in self.grid.places.items()],
            "rows": [
                {
                    "key": row.key,
                    "title": row.title,
                    "method": self.grid.methods[row.key],
                    "changes": list(row.changes),
                    "facts": dict(row.facts),
                    "cells": {str(seed): self.grid.name(row.key, seed) for seed in self.grid.seeds},
                }
                for row in self.grid.rows
            ],
            "tables": [table.to_dict() for table in self.tables],
        }

    def _cell(self, name: str, row: str, seed: int) -> dict[str, Any]:
        outcome = self.outcomes.get(name)
        state = "waiting" if outcome is None else "done" if outcome.ok else "failed"
        entry: dict[str, Any] = {"name": name, "row": row, "seed": seed, "folder": f"cells/{name}", "state": state,
                                 "updates": self.grid.planned[name]}  # fmt: skip
        if outcome is not None:
            entry |= {"result": outcome.result, "failure": outcome.failure}
        return entry


@dataclass(frozen=True)
class StudyPlan:
    """The rows to compare, the seeds, and the tables that show them."""

    base: Base
    seeds: tuple[int, ...]
    command: str
    kind: str = ""
    title: str = ""
    rows: tuple[Row, ...] = ()
    tables: Callable[[RunnableGrid, CellOutcomes], Sequence[Table]] = lambda grid, outcomes: ()
    """Those of the outcomes so far."""
    of_methods: bool = False
    """Whether rows are methods, each at a learning rate of its own or at the recipe's."""
    search: Search | None = None
    """For methods; None: every one trains at the recipe's learning rate."""
    axes: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    tuning: Mapping[str, Any] | None = None

    def report(self, grid: RunnableGrid, outcomes: CellOutcomes) -> Report:
        return Report(
            kind=self.kind,
            title=f"{grid.cells[0].recipe.name}: {self.title}",
            recipe=self.base.recipe,
            command=self.command,
            updates=self.base.updates or 0,
            grid=grid,
            outcomes=outcomes,
            tables=tuple(self.tables(grid, outcomes)),
            notes=self.notes,
            tuning=self.tuning,
            axes=self.axes,
        )


Write = Callable[[Report], None]
"""Gets the report again whenever a cell is done."""


def run_study(plan: StudyPlan, execute: Execute, write: Write, later: int = 0) -> Report:
    """Run every row with every seed; `later` further cells will be asked for."""
    grid = make_grid(plan.base, plan.rows, plan.seeds)  # reports wrong fields before a search begins
    if plan.of_methods:
        rows, notes, record = settle(plan.base, plan.rows, plan.seeds, plan.search, execute)
        plan = replace(plan, notes=(*notes, *plan.notes), tuning=record)
        grid = make_grid(plan.base, rows, plan.seeds)
    return plan.report(grid, execute(grid.cells, lambda so_far: write(plan.report(grid, so_far)), later))


# ---------------------------------------------------------------- as Markdown and as CSV


RECORD_FILES = "- files: [every run](runs.jsonl), [the recipe](recipe.toml) that their settings are changes of"


def to_markdown(report: Report, linked: bool = True) -> str:
    """The page; `linked` if the runs' folders lie next to it, else their record does."""
    parts = [f"# {plain(report.title)}"]
    entries = [f"- {name}: {(code if name == 'command' else plain)(text)}" for name, text in report.provenance()]
    parts.append("\n".join(entries if linked else [*entries, RECORD_FILES]))
    for table in report.tables:
        parts.append(f"## {plain(table.title)}")
        parts.append(_table(table, linked))
        parts.append("\n".join(f"- {plain(note)}" for note in table.notes))
    parts.append("## Every run")
    parts.append(_runs(report, linked))
    if report.failures:
        parts.append("## Failed runs")
        parts.append("\n".join(f"- {plain(name)}: {plain(reason)}" for name, reason in report.failures.items()))
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(table: Table, linked: bool) -> str:
    headings = ["", *table.facts, *(column.heading for column in table.columns), "runs"]
    rows = []
    for line in table.lines:
        figures = []
        for column in table.columns:
            figure = line.figures[column.key]
            text = figure.write(column)
            text = f"**{text}**" if figure.best else text
            figures.append(_linked(text, _only(line)) if linked and text != MISSING else text)
        facts = [plain(line.facts.get(fact, "")) for fact in table.facts]
        marks = line.marks.replace("*", "\\*")
        rows.append([f"{plain(line.title)} {marks}".rstrip(), *facts, *figures, _seeds(line, linked)])
    return _grid([plain(heading) for heading in headings], rows, left=1 + len(table.facts))


def _only(line: Line) -> str:
    """The one run behind a line's figures; empty if there are several: those are linked from the last column."""
    return next(iter(line.runs.values())) if len(line.runs) == 1 else ""


def _linked(text: str, run: str) -> str:
    """A link from the study's folder to a run's."""
    return f"[{text}]({quote(f'cells/{run}/')})" if run else text


def _seeds(line: Line, linked: bool) -> str:
    runs = [_linked(str(seed), name if linked else "") for seed, name in line.runs.items()]
    return " ".join([*runs, *(f"{seed} failed" for seed in line.failures), *(f"{seed} …" for seed in line.waiting)])


def _runs(report: Report, linked: bool) -> str:
    """One row for each run, every figure a link to its folder."""
    columns = report.tables[0].columns if report.tables else ()
    rows = []
    for row, seed, name, outcome in report.runs():
        if outcome.result is None:
            continue
        values = [(column, column.read(outcome.result)) for column in columns]
        figures = [
            MISSING if value is None else _linked(column.write(value), name if linked else "")
            for column, value in values
        ]
        rows.append([plain(row.title), str(seed), *figures])
    return _grid(["", "seed", *(plain(column.heading) for column in columns)], rows, left=1)


def _grid(headings: list[str], rows: Iterable[list[str]], left: int) -> str:
    rule = [":--" if number < left else "--:" for number in range(len(headings))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [headings, rule, *rows])


def plain(text: str) -> str:
    """Text that stays text: nothing in it is taken for Markdown or HTML, or ends a table cell.

    >>> plain("a|b <i> *c*")
    'a\\\\|b \\\\<i> \\\\*c\\\\*'
    """
    return re.sub(r"([\\|`*_\[\]<#~])", r"\\\1", " ".join(text.split()))


def code(text: str) -> str:
    """A code span, whatever backticks are in it."""
    text = " ".join(text.split())
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    return f"{fence}{text}{fence}" if len(fence) == 1 else f"{fence} {text} {fence}"


def to_csv(table: Table) -> str:
    """One line for each row: figures as in `result.json` (shares, seconds, bytes), mean and half interval."""
    parts = [f"{column.key}{part}" for column in table.columns for part in ("", "_half")]
    lines: list[list[object]] = [["row", "title", *table.facts, "over_budget", "seeds", *parts]]
    for line in table.lines:
        figures = [line.figures[column.key] for column in table.columns]
        values = [_exact(value) for figure in figures for value in (figure.mean, figure.half)]
        facts = [line.facts.get(fact, "") for fact in table.facts]
        lines.append([line.key, line.title, *facts, int(line.over_budget), " ".join(map(str, line.runs)), *values])
    return _csv(lines)


def runs_csv(report: Report) -> str:
    columns = report.tables[0].columns if report.tables else ()
    lines: list[list[object]] = [["row", "seed", "folder", "failure", *(column.key for column in columns)]]
    for row, seed, name, outcome in report.runs():
        values = [column.read(outcome.result) if outcome.result else None for column in columns]
        lines.append([row.key, seed, f"cells/{name}", outcome.failure, *map(_exact, values)])
    return _csv(lines)


def _exact(value: float | None) -> str:
    return "" if value is None else repr(value)


def _csv(lines: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue()
