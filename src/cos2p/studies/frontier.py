"""`frontier`: every method at every byte budget, each with the largest rate, rank or group that the ledger allows.

The same batch, the same data, the same number of client updates; if asked, a second part has runs that are planned for
equal virtual time. A method that cannot keep a budget is absent there, with the reason: a result, not a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cos2p.errors import BudgetError, ConfigError
from cos2p.memory.plan import takes
from cos2p.memory.planning import every_task, with_parts
from cos2p.memory.tasks import Member
from cos2p.memory.ways import needed_bytes
from cos2p.methods import build_method, method_class
from cos2p.methods.base import Method
from cos2p.models.layout import Weights
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import RunSetup, build_run_setup, first_weights
from cos2p.studies.columns import Column
from cos2p.studies.equal_time import Again, Cells, History, plan_again
from cos2p.studies.grid import Base, CellOutcomes, Execute, Grid, Row, RunnableGrid, recipe_digest
from cos2p.studies.report import Report, StudyPlan, Write, run_study
from cos2p.studies.tables import Figure, Line, Table, results_table, with_best
from cos2p.studies.tuning import Search
from cos2p.units import format_bytes, parse_bytes

MEMORY, METHOD = "memory (MB)", "method"
"""Facts of a row, and the axes of the picture."""


@dataclass(frozen=True)
class Fit:
    takes: str
    """In words: a rate, a rank, a number of blocks."""
    needed: int
    """Bytes of its largest task."""


@dataclass(frozen=True)
class Absent:
    """No task of the method fits."""

    reason: str


FindFit = Callable[[Sequence[Any], int], Fit | Absent]
"""Recipes of one method and a budget to what fits (`RunSetups.fit`)."""


def parse_memories(text: str) -> tuple[int, ...]:
    """
    >>> parse_memories("60MB,30MB")
    (30000000, 60000000)
    """
    found = sorted({parse_bytes(part.strip()) for part in text.split(",") if part.strip()})
    if not found or found[0] <= 0:
        raise ConfigError(f"--memory {text!r} names no budget; write 30MB,60MB,120MB")
    return tuple(found)


@dataclass(frozen=True)
class Places:
    """Which methods are at which budget, and why the others are not."""

    rows: tuple[Row, ...]
    absent: Mapping[tuple[str, int], str]
    """(method, memory) → reason."""


def find_places(
    base: Base,
    seeds: Sequence[int],
    methods: Sequence[str],
    memories: Sequence[int],
    on_progress: Callable[[int, int, str], None] = lambda done, total, name: None,
    find: FindFit | None = None,
) -> Places:
    """Ask every method for its tasks at every budget (`memories`, ascending); the data are read, nothing is trained.

    `on_progress` gets the number of places that are done, of all, and the name of the next.
    """
    find = find or RunSetups().fit
    base.refuse_strangers([Row(name, "", method=name) for name in methods])
    rows, absent = [], {}
    for number, name in enumerate(methods):
        row = Row(name, method_class(name).title, method=name)
        recipes = [base.load(row, f"seed={seed}") for seed in seeds]
        groups = len(recipes[0].fleet.devices)
        known: dict[Fit, int] = {}
        for place, memory in enumerate(memories, number * len(memories)):
            on_progress(place, len(methods) * len(memories), f"{name} at {format_bytes(memory)}")
            found = find(recipes, memory)
            if isinstance(found, Absent):
                absent[name, memory] = found.reason
            else:
                # The same tasks as with fewer bytes: the same runs.
                used = known.setdefault(found, memory)
                rows.append(_row(row, groups, memory, used, found))
    if not rows:
        (name, memory), reason = next(iter(absent.items()))
        raise ConfigError(
            f"no method keeps any of these budgets; {name} at {format_bytes(memory)}: {reason}. Give larger ones by "
            "--memory, or a smaller batch by --set fleet.devices.0.batch=4"
        )
    return Places(tuple(rows), absent)


def _row(row: Row, groups: int, memory: int, used: int, fit: Fit) -> Row:
    """`memory` is the budget, of which what fits within `used` bytes is all that the method can use."""
    fields = (f"memory={used}", "rate=auto")
    changes = [f"fleet.devices.{group}.{field}" for group in range(groups) for field in fields]
    return Row(
        key=f"{row.key}@{_megabytes(memory)}MB",
        title=f"{row.title}, {format_bytes(memory)}",
        changes=(*row.changes, *changes, "fleet.enforce_memory=true"),
        method=row.method,
        facts={METHOD: row.title, MEMORY: _megabytes(memory), "takes": fit.takes},
    )


def _megabytes(memory: int) -> str:
    return f"{memory / 1e6:g}"


def frontier(
    plan: StudyPlan, methods: Sequence[str], memories: Sequence[int], places: Places, search: Search | None = None
) -> StudyPlan:
    titles = {name: method_class(name).title for name in methods}
    columns = {_megabytes(memory): budget_column(memory) for memory in memories}
    known = {row.facts[METHOD] for row in places.rows}
    return replace(
        plan,
        kind="frontier",
        title="accuracy by bytes per device",
        rows=places.rows,
        tables=partial(_tables, titles, columns),
        of_methods=True,
        search=search,
        notes=tuple(_absences(places.absent)),
        axes={
            MEMORY: {"path": "fleet.devices.*.memory", "values": list(columns)},
            METHOD: {"path": "method.name", "values": [title for title in titles.values() if title in known]},
        },
    )


def run_twice(plan: StudyPlan, execute: Execute, write: Write, history: History) -> Report:
    """A frontier, and its methods again, planned for the time of the first one; `history` is asked for a finished
    cell's rounds."""
    first = run_study(plan, execute, write, later=len(plan.rows) * len(plan.seeds))  # at most
    assert isinstance(first.grid, RunnableGrid)
    assert isinstance(plan.tables, partial)
    again = plan_again(plan.base, first.grid, _cells(first.grid.rows), first.outcomes, history)
    both = replace(plan, tables=partial(plan.tables, again=again), notes=first.notes, tuning=first.tuning)
    more = execute(again.cells, lambda so_far: write(both.report(again.grid, {**first.outcomes, **so_far})))
    return both.report(again.grid, {**first.outcomes, **more})


def _absences(absent: Mapping[tuple[str, int], str]) -> list[str]:
    """One note for each method that is missing somewhere."""
    notes = []
    for name in dict.fromkeys(name for name, _ in absent):
        places = [memory for method, memory in absent if method == name]
        where = ", ".join(map(format_bytes, places))
        notes.append(f"{method_class(name).title} is absent at {where}: {absent[name, places[-1]]}.")
    return notes


def _cells(rows: Sequence[Row]) -> dict[tuple[str, str], str]:
    """(title of the method, budget) → key of the row."""
    return {(row.facts[METHOD], row.facts[MEMORY]): row.key for row in rows}


def _tables(
    titles: Mapping[str, str],
    columns: Mapping[str, Column],
    grid: RunnableGrid,
    outcomes: CellOutcomes,
    again: Again | None = None,
) -> list[Table]:
    rows = grid.rows if again is None else again.first
    updates = _by_budget("by_budget", "equal client updates", grid, outcomes, titles, columns, _cells(rows))
    tables = [results_table("results", "Methods and budgets", grid, outcomes, rows), updates]
    if again is not None:
        time = "by_budget_time", "equal virtual time"
        tables.append(_by_budget(*time, grid, outcomes, titles, columns, again.where, again.note))
        if again.rows:
            tables.append(results_table("planned", "Methods planned for that time", grid, outcomes, again.rows))
    return tables


def budget_column(memory: int) -> Column:
    return Column(f"at_{memory}", f"{memory / 1e6:g} MB", "%", 100.0, 1, "more")


def _by_budget(
    name: str,
    equal: str,
    grid: Grid,
    outcomes: CellOutcomes,
    titles: Mapping[str, str],
    columns: Mapping[str, Column],
    cells: Cells,
    *more: str,
) -> Table:
    """A row for each method (`titles`, by name), a column for each budget. `more`: further notes."""
    lines = []
    for method, shown in titles.items():
        figures, waiting = {}, set()
        for budget, column in columns.items():
            key = cells.get((shown, budget))
            found = {} if key is None else {seed: outcomes.get(grid.name(key, seed)) for seed in grid.seeds}
            waiting |= {seed for seed, outcome in found.items() if outcome is None}
            top1 = {seed: outcome.result.get("top1") for seed, outcome in found.items() if outcome and outcome.result}
            figures[column.key] = Figure.of({seed: value for seed, value in top1.items() if value is not None})
        lines.append(Line(method, shown, figures, {}, waiting=tuple(sorted(waiting))))
    for column in columns.values():
        lines = with_best(lines, column)
    notes = (
        "Mean and 95 % interval (Student's t) over seeds; in bold what lies clear of all others of its column; "
        "– where the method cannot keep the budget.",
        *more,
    )
    return Table(
        name, f"Server top-1 by bytes per device, at {equal}", tuple(columns.values()), tuple(lines), notes=notes
    )


# ---------------------------------------------------------------- what fits


class RunSetups:
    """Data and fleets of recipes, read once for all methods."""

    def __init__(self) -> None:
        self._run_setups: dict[str, tuple[RunSetup, Weights]] = {}

    def of(self, recipe: Recipe) -> tuple[RunSetup, Weights]:
        groups = tuple(group.model_copy(update={"rate": 1.0}) for group in recipe.fleet.devices)  # planned below
        fleet = recipe.fleet.model_copy(update={"devices": groups, "enforce_memory": False})
        plain = recipe.model_copy(update={"method": {"name": "fedavg"}, "fleet": fleet})
        key = recipe_digest(plain)
        if key not in self._run_setups:
            run_setup = build_run_setup(plain)
            self._run_setups[key] = run_setup, first_weights(plain, run_setup.config)
        return self._run_setups[key]

    def fit(self, recipes: Sequence[Recipe], memory: int) -> Fit | Absent:
        """The tasks that one method takes, whose recipes (of several seeds) differ in their data's division alone."""
        words: set[str] = set()
        needed = 0
        for recipe in recipes:
            try:
                method, weights = _planned(recipe, *self.of(recipe), memory)
                for member in _extremes(method.context.members.values()):
                    for alone, task in every_task(method, member, weights):
                        needed = max(needed, needed_bytes(alone, member, task))
                    words.add(takes(task, member))
            except BudgetError as error:
                return Absent(str(error))
            if needed > memory:
                return Absent(f"its smallest task needs {format_bytes(needed)}")
        return Fit(" / ".join(sorted(words)), needed)


def _planned(recipe: Recipe, run_setup: RunSetup, weights: Weights, memory: int) -> tuple[Method, Weights]:
    members = {
        name: replace(member, device=member.device.model_copy(update={"memory": memory}), auto=True)
        for name, member in run_setup.context.members.items()
    }
    context = replace(run_setup.context, members=members, enforce_memory=True)
    method = build_method(recipe.method, with_parts(build_method(recipe.method, context)))
    return method, method.initial_weights(dict(weights))


def _extremes(members: Iterable[Member]) -> list[Member]:
    """Those whose tasks can be the largest: most samples, largest batch, most tokens."""
    every = list(members)
    chosen = [
        max(every, key=lambda member: member.samples),
        max(every, key=lambda member: member.batch),
        max(every, key=lambda member: int(member.rows or "0", 16).bit_count()),
    ]
    return list({member.name: member for member in chosen}.values())
