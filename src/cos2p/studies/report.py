"""What a study came to: its tables, where they come from, and everything that went wrong on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cos2p.studies.cell_outcome import CellOutcomes
from cos2p.studies.grid import Grid
from cos2p.studies.tables import Table


@dataclass(frozen=True)
class Report:
    kind: str
    """compare, ablate or sweep"""
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

    @property
    def done(self) -> int:
        return sum(cell.name in self.outcomes for cell in self.grid.cells)

    @property
    def failures(self) -> dict[str, str]:
        """Cell → reason."""
        found = ((cell.name, self.outcomes.get(cell.name)) for cell in self.grid.cells)
        return {name: outcome.failure for name, outcome in found if outcome is not None and not outcome.ok}

    def provenance(self) -> list[tuple[str, str]]:
        """What a reader needs to get the same figures."""
        total = len(self.grid.cells)
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
        different = sorted({cell.recipe.schedule.updates or 0 for cell in self.grid.cells})
        return f"{different[0]:,} in every run" if len(different) == 1 else ", ".join(f"{n:,}" for n in different)

    def versions(self) -> list[str]:
        """Of the programs that made the runs; more than one line if the study went on after an update."""
        found = [outcome.result.get("versions", {}) for outcome in self.outcomes.values() if outcome.result]
        return sorted({", ".join(f"{name} {number}" for name, number in sorted(v.items())) for v in found if v})

    def _short_runs(self) -> list[str]:
        """Runs that ended before their updates were done: the comparison is not fair to them, or not by them."""
        short = []
        for cell in self.grid.cells:
            outcome = self.outcomes.get(cell.name)
            planned = cell.recipe.schedule.updates
            if outcome is None or outcome.result is None or planned is None:
                continue
            updates = outcome.result.get("updates", planned)
            if updates < planned:
                why = outcome.result.get("finished", "")
                short.append(f"{cell.name} had {updates:,} of {planned:,} updates{f' ({why})' if why else ''}")
        return short

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "title": self.title,
            "recipe": self.recipe,
            "command": self.command,
            "updates": self.updates,
            "seeds": list(self.grid.seeds),
            "versions": self.versions(),
            "notes": [text for name, text in self.provenance() if name == "note"],
            "axes": dict(self.axes),
            "tuning": self.tuning,
            "cells": [self._cell(cell.name, cell.row, cell.seed) for cell in self.grid.cells],
            "rows": [
                {
                    "key": row.key,
                    "title": row.title,
                    "method": self.grid.recipe(row.key).method["name"],
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
        entry: dict[str, Any] = {"name": name, "row": row, "seed": seed, "folder": f"cells/{name}", "state": state}
        if outcome is not None:
            entry |= {"result": outcome.result, "failure": outcome.failure}
        return entry
