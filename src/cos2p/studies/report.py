"""A study's report: its tables, where they come from, and everything that went wrong on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from typing_extensions import Self

from cos2p.studies.grid import Base, CellOutcome, CellOutcomes, Execute, Grid, Row, RunnableGrid, make_grid
from cos2p.studies.tables import Table


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
    """Of a sweep: name → path and values."""
    pictures: Mapping[str, str] = field(default_factory=dict)
    """Files next to the tables: name → SVG."""

    @property
    def done(self) -> int:
        return sum(name in self.outcomes for name in self.grid.places)

    @property
    def failures(self) -> dict[str, str]:
        """Cell → reason."""
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
        """What a reader needs to get the same figures."""
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
        """Of the programs that made the runs; more than one line if the study went on after an update."""
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
    """The request that all kinds of studies have in common."""

    base: Base
    seeds: tuple[int, ...]
    command: str

    def checked(self) -> Self:
        """The same with its number of updates filled in."""
        return replace(self, base=self.base.checked())

    def report(
        self, kind: str, title: str, grid: RunnableGrid, outcomes: CellOutcomes, tables: Sequence[Table], **more: Any
    ) -> Report:
        return Report(
            kind,
            f"{grid.cells[0].recipe.name}: {title}",
            self.base.recipe,
            self.command,
            self.base.updates or 0,
            grid,
            outcomes,
            tuple(tables),
            **more,
        )


Write = Callable[[Report], None]
"""Gets the report again whenever a cell is done."""


def run_study(
    plan: StudyPlan,
    kind: str,
    title: str,
    rows: Sequence[Row],
    tables: Callable[[RunnableGrid, CellOutcomes], Sequence[Table]],
    execute: Execute,
    write: Write,
    **more: Any,
) -> Report:
    """Run every row with every seed; `tables` makes the tables of the outcomes so far."""
    grid = make_grid(plan.base, rows, plan.seeds)

    def report(outcomes: CellOutcomes) -> Report:
        return plan.report(kind, title, grid, outcomes, tables(grid, outcomes), **more)

    return report(execute(grid.cells, lambda so_far: write(report(so_far))))
