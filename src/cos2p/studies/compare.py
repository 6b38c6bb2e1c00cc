"""`compare`: every method at equal budget, equal data and an equal number of client updates. The paper's main table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cos2p.errors import ConfigError
from cos2p.methods import method_class, methods
from cos2p.studies.cell_outcome import CellOutcomes, Execute
from cos2p.studies.grid import Base, Row, RunnableGrid, make_grid
from cos2p.studies.report import Report
from cos2p.studies.tables import differences_table, results_table
from cos2p.studies.tuning import Choice, Search, search_settings, tuned
from cos2p.studies.tuning_report import tuning_notes, tuning_record

REFERENCE = "cos2p"


@dataclass(frozen=True)
class Comparison:
    """What is asked for."""

    base: Base
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    command: str
    reference: str = REFERENCE
    """The method that differences are taken to; without it there is no table of differences."""
    search: Search | None = None
    """None: every method trains at the recipe's learning rate."""


def choose_methods(wanted: str) -> tuple[str, ...]:
    """`all`, or names with commas. All are ordered as in the paper: bounds first, then the rivals, then Co-S²P."""
    if wanted.strip() == "all":
        return tuple(sorted(methods(), key=lambda name: (name.startswith(REFERENCE), not _over_budget(name))))
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    if not names:
        raise ConfigError(f"--methods {wanted!r} names none; known: all, {', '.join(sorted(methods()))}")
    return tuple(method_class(name).name for name in names)


def compare(
    plan: Comparison,
    execute: Execute,
    write: Callable[[Report], None],
    write_tuning: Callable[[Mapping[str, Any]], None] = lambda record: None,
) -> Report:
    """Tune if asked, run every method with every seed. `write` gets the report again whenever a cell is done."""
    plan = replace(plan, base=plan.base.checked())
    updates = plan.base.updates or 0
    rows = [Row(name, method_class(name).title, method=name) for name in plan.methods]
    final = make_grid(plan.base, rows, plan.seeds)
    choices: Mapping[str, Choice] = {}
    record: dict[str, Any] | None = None
    notes: list[str] = []
    if plan.search is not None:
        plan.search.check(plan.base, plan.methods, plan.seeds)
        trials, choices = search_settings(plan.base, rows, plan.search, execute, finals=len(final.cells))
        record = tuning_record(plan.search, trials, choices, updates)
        write_tuning(record)
        notes = tuning_notes(choices, plan.search, updates)
        rows = [replace(tuned(row, choices[row.key].best), facts={"lr": choices[row.key].words()}) for row in rows]
        final = make_grid(plan.base, rows, plan.seeds)
    else:
        notes.append("Every method at the recipe's learning rate; --tune searches one for each.")

    def report(outcomes: CellOutcomes) -> Report:
        return _report(plan, final, outcomes, notes, record)

    return report(execute(final.cells, lambda so_far: write(report(so_far))))


def _report(
    plan: Comparison, grid: RunnableGrid, outcomes: CellOutcomes, notes: Sequence[str], record: Mapping[str, Any] | None
) -> Report:
    name = grid.cells[0].recipe.name
    bounds = frozenset(row.key for row in grid.rows if _over_budget(row.key))
    results = results_table("results", "Methods at equal budget", grid, outcomes, over_budget=bounds)
    tables = [results]
    if plan.reference in plan.methods and len(plan.methods) > 1:
        title = f"Differences to {method_class(plan.reference).title}"
        tables.append(differences_table("differences", title, results, plan.reference))
    return Report(
        kind="compare",
        title=f"{name}: methods at equal budget",
        recipe=plan.base.recipe,
        command=plan.command,
        updates=plan.base.updates or 0,
        grid=grid,
        outcomes=outcomes,
        tables=tuple(tables),
        notes=tuple(notes),
        tuning=record,
    )


def _over_budget(name: str) -> bool:
    return method_class(name).over_budget
