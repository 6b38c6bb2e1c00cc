"""A frontier's tables: one row for each method, one column for each budget; at equal updates and at equal time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from cos2p.studies.cell_outcome import CellOutcomes
from cos2p.studies.columns import Column
from cos2p.studies.grid import Grid
from cos2p.studies.same_time import Course
from cos2p.studies.tables import Figure, Line, Table, with_best
from cos2p.terminal.formatting import count

History = Callable[[str], Course]
"""How a finished cell went."""

TIME, TIME_TITLE = "by_budget_time", "Server top-1 by bytes per device, at equal virtual time"

Columns = Mapping[str, Column]
"""By budget."""
Cells = Mapping[tuple[str, str], str]
"""(title of the method, budget) → key of the row."""


def budget_column(memory: int) -> Column:
    return Column(f"at_{memory}", f"{memory / 1e6:g} MB", "%", 100.0, 1, "more")


def equal_updates_table(
    grid: Grid, outcomes: CellOutcomes, titles: Mapping[str, str], columns: Columns, cells: Cells
) -> Table:
    title = "Server top-1 by bytes per device, at equal client updates"
    return _table("by_budget", title, grid, outcomes, titles, columns, cells, _at_the_end(outcomes))


def planned_time_table(
    grid: Grid, outcomes: CellOutcomes, titles: Mapping[str, str], columns: Columns, cells: Cells, note: str
) -> Table:
    """At equal time, of runs that were planned for it."""
    return _table(TIME, TIME_TITLE, grid, outcomes, titles, columns, cells, _at_the_end(outcomes), note)


def _at_the_end(outcomes: CellOutcomes) -> Callable[[str, int, str], float | None]:
    def value(name: str, seed: int, budget: str) -> float | None:
        result = outcomes[name].result if name in outcomes else None
        return None if result is None else result.get("top1")

    return value


def equal_time_table(
    grid: Grid,
    outcomes: CellOutcomes,
    titles: Mapping[str, str],
    columns: Columns,
    cells: Cells,
    history: History,
    leaping: Collection[str] = (),
) -> Table:
    """Where the fastest method of a budget ends, the others are stopped: their last score before that counts.

    `leaping` cells get their head when they end: a score on the way is of another one, and is not compared with it.
    """
    ends = {
        (budget, seed): _first_end(grid, outcomes, [key for (_, b), key in cells.items() if b == budget], seed)
        for budget in columns
        for seed in grid.seeds
    }

    unjudged: set[str] = set()
    cut_short: set[str] = set()

    def value(name: str, seed: int, budget: str) -> float | None:
        result, end = outcomes[name].result if name in outcomes else None, ends[budget, seed]
        if result is None or end is None:
            return None
        if result["virtual_seconds"] <= end:
            top1: float | None = result.get("top1")
            return top1
        if name in leaping:
            cut_short.add(name)
            return None
        scores = [top1 for time, top1 in history(name).scores if time <= end]
        if not scores:
            unjudged.add(name)
        return scores[-1] if scores else None

    note = (
        "At each budget and seed all are judged when the first of them has done its updates, by their last scores till "
        "then; schedule.evaluate_every says how often there are any."
    )
    table = _table(TIME, TIME_TITLE, grid, outcomes, titles, columns, cells, value, note)
    notes = list(table.notes)
    if unjudged:
        notes.append(
            f"{count(len(unjudged), 'run')} had no score by then and stand in no cell here; "
            "with --set schedule.evaluate_every=1 every round is judged."
        )
    if cut_short:
        notes.append(
            f"{count(len(cut_short), 'run')} would get the head in closed form only after that and stand in no cell "
            "here; --equal-time runs them again, planned for the time of the first method."
        )
    return replace(table, notes=tuple(notes))


def _first_end(grid: Grid, outcomes: CellOutcomes, keys: Sequence[str], seed: int) -> float | None:
    """The virtual second at which the first of these rows has done; None until all have run."""
    found = [outcomes.get(grid.name(key, seed)) for key in keys]
    if any(outcome is None for outcome in found):
        return None
    return min((outcome.result["virtual_seconds"] for outcome in found if outcome and outcome.result), default=None)


def _table(
    name: str,
    title: str,
    grid: Grid,
    outcomes: CellOutcomes,
    titles: Mapping[str, str],
    columns: Columns,
    cells: Cells,
    value: Callable[[str, int, str], float | None],
    *more: str,
) -> Table:
    lines = []
    for method, shown in titles.items():
        figures, waiting = {}, set()
        for budget, column in columns.items():
            key = cells.get((shown, budget))
            names = {} if key is None else {seed: grid.name(key, seed) for seed in grid.seeds}
            waiting |= {seed for seed, cell in names.items() if cell not in outcomes}
            found = {seed: value(cell, seed, budget) for seed, cell in names.items()}
            figures[column.key] = Figure.of({seed: top1 for seed, top1 in found.items() if top1 is not None})
        lines.append(Line(method, shown, figures, {}, waiting=tuple(sorted(waiting))))
    for column in columns.values():
        lines = with_best(lines, column)
    notes = (
        "Mean and 95 % interval (Student's t) over seeds; in bold what lies clear of all others of its column; "
        "– where the method cannot keep the budget.",
        *more,
    )
    return Table(name, title, tuple(columns.values()), tuple(lines), notes=notes)
