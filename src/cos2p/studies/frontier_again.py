"""A frontier's second part, if it is asked for: every method again, planned for the time that the first one takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean

from cos2p.methods import method_class, method_settings
from cos2p.methods.head_settings import ends_told
from cos2p.studies.cell_outcome import CellOutcomes
from cos2p.studies.frontier_tables import Cells, History
from cos2p.studies.grid import Base, Cell, Row, RunnableGrid, make_grid
from cos2p.studies.same_time import updates_in


@dataclass(frozen=True)
class Again:
    """What the second part consists of."""

    grid: RunnableGrid
    """Of all rows, the first part's and these."""
    first: tuple[Row, ...]
    rows: tuple[Row, ...]
    """Those that have more or fewer updates than in the first part."""
    where: Cells
    """Who stands where at equal time; of the first part where it took the same updates."""
    note: str

    @property
    def cells(self) -> tuple[Cell, ...]:
        """What is to be run."""
        known = {self.grid.name(row.key, seed) for row in self.first for seed in self.grid.seeds}
        return tuple(cell for cell in self.grid.cells if cell.name not in known)


def plan_again(base: Base, grid: RunnableGrid, places: Cells, outcomes: CellOutcomes, history: History) -> Again:
    """`places`: the rows by method and budget, in the order of the methods. Where a run failed, nothing is planned."""
    where, rows, given = {}, [], []
    by_key = {row.key: row for row in grid.rows}
    for budget in dict.fromkeys(budget for _, budget in places):
        here = [(title, key) for (title, place), key in places.items() if place == budget]
        reference = here[0][1]
        seconds = _mean_seconds(grid, reference, outcomes)
        if seconds is None:
            continue
        given.append(f"{seconds:.0f} s in {budget} MB ({method_class(grid.methods[reference]).title})")
        for title, key in here:
            updates = _updates(grid, key, seconds, outcomes, history) if key != reference else None
            if key == reference or updates == _planned(grid, key):
                where[title, budget] = key
            elif updates is not None:
                row = _with_updates(by_key[key], updates)
                where[title, budget] = row.key
                rows.append(row)
    note = (
        f"Every method is planned to end when the first one does, by the pace of its own runs: {'; '.join(given)}. "
        "– also where it cannot train at all in that time."
    )
    return Again(make_grid(base, [*grid.rows, *rows], grid.seeds), grid.rows, tuple(rows), where, note)


def _mean_seconds(grid: RunnableGrid, key: str, outcomes: CellOutcomes) -> float | None:
    found = [outcomes[grid.name(key, seed)].result for seed in grid.seeds]
    return fmean(result["virtual_seconds"] for result in found if result) if all(found) else None


def _planned(grid: RunnableGrid, key: str) -> int:
    return grid.planned[grid.name(key, grid.seeds[0])]


def _updates(grid: RunnableGrid, key: str, seconds: float, outcomes: CellOutcomes, history: History) -> int | None:
    names = [grid.name(key, seed) for seed in grid.seeds]
    if not all(outcomes[name].ok for name in names):
        return None
    recipe = next(cell.recipe for cell in grid.cells if cell.name == names[0])
    devices = sum(group.count for group in recipe.fleet.devices)
    told_last = ends_told(method_settings(recipe.method))
    return updates_in([history(name) for name in names], seconds, devices, told_last=told_last)


def _with_updates(row: Row, updates: int) -> Row:
    """
    >>> _with_updates(Row("fedlora@58MB", "FedLoRA, 58 MB"), 32).key
    'fedlora@58MB, 32 updates'
    """
    named = f"{updates} updates"
    return replace(
        row,
        key=f"{row.key}, {named}",
        title=f"{row.title}, {named}",
        changes=(*row.changes, f"schedule.updates={updates}"),
        facts={**row.facts, "updates": f"{updates}"},
        folder=f"{row.folder}, {named}" if row.folder else "",
    )
