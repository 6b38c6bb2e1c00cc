"""Methods at equal time: how many updates to plan so that a run ends when another one does.

A run that is cut off before its end says little: its step has not come down, and a head in closed form is not there
yet. So a frontier's second part, if it is asked for, runs every method again, planned from the pace of its own runs
for the time that the first one takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean

from cos2p.methods import method_class, method_settings
from cos2p.methods.base import ends_in_closed_form
from cos2p.studies.grid import Base, Cell, CellOutcomes, Row, RunnableGrid, make_grid
from cos2p.tracking.event_kinds import Aggregated
from cos2p.tracking.events import read_events

LONGEST = 8
"""A faster method is given at most so many times its updates."""


Rounds = Sequence[tuple[float, int]]
"""The rounds of a finished run: (virtual second, updates merged by then) at the end of each round."""
History = Callable[[str], Rounds]
"""The rounds of a finished cell, by its name."""
Cells = Mapping[tuple[str, str], str]
"""(title of the method, budget) → key of the row."""


def read_rounds(run: Path) -> Rounds:
    closed = [event for event in read_events(run / "events.jsonl") if isinstance(event, Aggregated)]
    return list(zip((event.t for event in closed), accumulate(event.updates for event in closed), strict=True))


def updates_in(runs: Sequence[Rounds], seconds: float, step: int, *, final_statistics: bool) -> int | None:
    """The most updates that the method does in so many seconds, on the average of its runs; None: too few to train.

    By `step`, a task for each device, more or fewer than these runs had. Runs whose final round reports
    statistics (`final_statistics`) keep that round, and at least one trains after the first, which may report them too.

    >>> run = [(1.0, 8), (5.0, 16), (9.0, 24), (10.0, 32)]
    >>> [updates_in([run], seconds, 8, final_statistics=True) for seconds in (5.9, 6.0, 9.9, 14.0)]
    [None, 24, 24, 40]
    """
    if not runs or not all(runs):
        return None
    had = round(fmean(rounds[-1][1] for rounds in runs))
    least = 3 * step if final_statistics else step
    fewest = had - max(0, (had - least) // step) * step
    found = None
    for updates in range(fewest, LONGEST * had + 1, step):
        if fmean(seconds_for(rounds, updates, final_statistics=final_statistics) for rounds in runs) > seconds:
            break
        found = updates
    return found


def seconds_for(rounds: Rounds, updates: int, *, final_statistics: bool) -> float:
    """When a run like this one would end, had it been planned for so many updates."""
    training, last = list(rounds), (0.0, 0)
    if final_statistics and len(training) > 1:
        end = training.pop()
        last = (end[0] - training[-1][0], end[1] - training[-1][1])
    wanted = updates - last[1]
    for at, merged in training:
        if merged >= wanted:
            return at + last[0]
    (begun, first), (ended, merged) = training[(len(training) - 1) // 2], training[-1]
    if merged == first:
        begun, first = 0.0, 0
    return ended + (ended - begun) / (merged - first) * (wanted - merged) + last[0]


# ---------------------------------------------------------------- a frontier's second part


@dataclass(frozen=True)
class Again:
    """The second part."""

    grid: RunnableGrid
    """All rows, the first part's and these."""
    first: tuple[Row, ...]
    rows: tuple[Row, ...]
    """Those that have more or fewer updates than in the first part."""
    where: Cells
    """The methods' figures at equal time; those of the first part where it took the same updates."""
    note: str

    @property
    def cells(self) -> tuple[Cell, ...]:
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
            updates = _updates_for(grid, key, seconds, outcomes, history) if key != reference else None
            if key == reference or updates == grid.planned[grid.name(key, grid.seeds[0])]:
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


def _updates_for(grid: RunnableGrid, key: str, seconds: float, outcomes: CellOutcomes, history: History) -> int | None:
    names = [grid.name(key, seed) for seed in grid.seeds]
    if not all(outcomes[name].ok for name in names):
        return None
    recipe = next(cell.recipe for cell in grid.cells if cell.name == names[0])
    devices = sum(group.count for group in recipe.fleet.devices)
    final_statistics = ends_in_closed_form(method_settings(recipe.method))
    return updates_in([history(name) for name in names], seconds, devices, final_statistics=final_statistics)


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
