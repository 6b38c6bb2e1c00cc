"""A frontier's tables: one row for each method, one column for each budget; at equal updates and at equal time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cos2p.studies.columns import Column
from cos2p.studies.equal_time import Cells, History
from cos2p.studies.grid import CellOutcomes, Grid
from cos2p.studies.tables import Figure, Line, Table, with_best
from cos2p.terminal.formatting import count

TIME, TIME_TITLE = "by_budget_time", "Server top-1 by bytes per device, at equal virtual time"

Columns = Mapping[str, Column]
"""By budget."""


def budget_column(memory: int) -> Column:
    return Column(f"at_{memory}", f"{memory / 1e6:g} MB", "%", 100.0, 1, "more")


@dataclass(frozen=True)
class BudgetTables:
    """Tables with a row for each method and a column for each budget."""

    grid: Grid
    outcomes: CellOutcomes
    titles: Mapping[str, str]
    """Of the methods, by name."""
    columns: Columns

    def at_equal_updates(self, cells: Cells) -> Table:
        title = "Server top-1 by bytes per device, at equal client updates"
        return self._table("by_budget", title, cells, self._at_the_end)

    def at_planned_time(self, cells: Cells, note: str) -> Table:
        """At equal time, of runs that were planned for it."""
        return self._table(TIME, TIME_TITLE, cells, self._at_the_end, note)

    def at_equal_time(self, cells: Cells, history: History, leaping: Collection[str] = ()) -> Table:
        """Where the fastest method of a budget ends, the others are stopped: their last score before that counts.

        `leaping` cells get their head when they end: a score before that is another head's, and is not compared.
        """
        ends = {
            (budget, seed): self._first_end([key for (_, b), key in cells.items() if b == budget], seed)
            for budget in self.columns
            for seed in self.grid.seeds
        }
        unscored: set[str] = set()
        cut_short: set[str] = set()

        def value(name: str, seed: int, budget: str) -> float | None:
            result, end = self._result(name), ends[budget, seed]
            if result is None or end is None:
                return None
            if result["virtual_seconds"] <= end:
                return self._at_the_end(name, seed, budget)
            if name in leaping:
                cut_short.add(name)
                return None
            scores = [top1 for time, top1 in history(name).scores if time <= end]
            if not scores:
                unscored.add(name)
            return scores[-1] if scores else None

        note = (
            "At each budget and seed all are evaluated when the first has done its updates, by their last scores "
            "till then; schedule.evaluate_every says how often there are any."
        )
        table = self._table(TIME, TIME_TITLE, cells, value, note)
        notes = list(table.notes)
        if unscored:
            notes.append(
                f"{count(len(unscored), 'run')} had no score by then and stand in no cell here; "
                "with --set schedule.evaluate_every=1 every round is evaluated."
            )
        if cut_short:
            notes.append(
                f"{count(len(cut_short), 'run')} would get the head in closed form only after that and stand in no "
                "cell here; --equal-time runs them again, planned for the time of the first method."
            )
        return replace(table, notes=tuple(notes))

    def _result(self, name: str) -> Mapping[str, Any] | None:
        return self.outcomes[name].result if name in self.outcomes else None

    def _at_the_end(self, name: str, seed: int, budget: str) -> float | None:
        return (self._result(name) or {}).get("top1")

    def _first_end(self, keys: Sequence[str], seed: int) -> float | None:
        """The virtual second at which the first of these rows ended; None until all have run."""
        found = [self.outcomes.get(self.grid.name(key, seed)) for key in keys]
        if any(outcome is None for outcome in found):
            return None
        return min((outcome.result["virtual_seconds"] for outcome in found if outcome and outcome.result), default=None)

    def _table(
        self, name: str, title: str, cells: Cells, value: Callable[[str, int, str], float | None], *more: str
    ) -> Table:
        lines = []
        for method, shown in self.titles.items():
            figures, waiting = {}, set()
            for budget, column in self.columns.items():
                key = cells.get((shown, budget))
                names = {} if key is None else {seed: self.grid.name(key, seed) for seed in self.grid.seeds}
                waiting |= {seed for seed, cell in names.items() if cell not in self.outcomes}
                found = {seed: value(cell, seed, budget) for seed, cell in names.items()}
                figures[column.key] = Figure.of({seed: top1 for seed, top1 in found.items() if top1 is not None})
            lines.append(Line(method, shown, figures, {}, waiting=tuple(sorted(waiting))))
        for column in self.columns.values():
            lines = with_best(lines, column)
        notes = (
            "Mean and 95 % interval (Student's t) over seeds; in bold what lies clear of all others of its column; "
            "– where the method cannot keep the budget.",
            *more,
        )
        return Table(name, title, tuple(self.columns.values()), tuple(lines), notes=notes)
