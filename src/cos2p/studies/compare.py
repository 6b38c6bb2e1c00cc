"""`compare`: every method at equal budget, equal data and an equal number of client updates. The paper's main table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cos2p.errors import ConfigError
from cos2p.methods import method_class, methods
from cos2p.studies.grid import Base, CellOutcomes, Execute, Row, RunnableGrid, make_grid
from cos2p.studies.report import Report, StudyPlan, Write, run_study
from cos2p.studies.tables import Table, differences_table, results_table
from cos2p.studies.target import ReadCurve, Target, check_targets, target_tables
from cos2p.studies.tuning import Search, search_settings, tuned, tuning_notes, tuning_record

REFERENCE = "cos2p"


@dataclass(frozen=True)
class Comparison(StudyPlan):
    methods: tuple[str, ...]
    reference: str = REFERENCE
    """The method that differences are taken to; without it there is no table of differences."""
    search: Search | None = None
    """None: every method trains at the recipe's learning rate."""
    targets: tuple[Target, ...] = ()
    """Accuracies; a table for each says what every method has spent when it first has them."""


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
    write: Write,
    write_tuning: Callable[[Mapping[str, Any]], None] = lambda record: None,
    read_curve: ReadCurve = lambda cell: (),
) -> Report:
    plan = plan.checked()
    check_targets(plan.targets, plan.methods)
    rows: Sequence[Row] = [Row(name, method_class(name).title, method=name) for name in plan.methods]
    make_grid(plan.base, rows, plan.seeds)  # reports wrong fields before a search begins
    rows, notes, record = settle(plan.base, rows, plan.seeds, plan.search, execute, write_tuning)
    tables, more = partial(_tables, plan, read_curve), {"notes": tuple(notes), "tuning": record}
    return run_study(plan, "compare", "methods at equal budget", rows, tables, execute, write, **more)


def settle(
    base: Base,
    rows: Sequence[Row],
    seeds: Sequence[int],
    search: Search | None,
    execute: Execute,
    write_tuning: Callable[[Mapping[str, Any]], None],
) -> tuple[list[Row], list[str], Mapping[str, Any] | None]:
    """The rows as they will run: each at the rate and in the form that a search finds, or as the recipe has them.

    Returns them with notes for the reader and the record of the search.
    """
    if search is None:
        return list(rows), [_rates_note(base, rows)], None
    search.check(base, [base.method(row) for row in rows], seeds)
    choices = search_settings(base, rows, search, execute, finals=len(rows) * len(seeds))
    updates = base.updates or 0
    record = tuning_record(search, choices, updates)
    write_tuning(record)
    settled = [
        replace(tuned(row, choices[row.key].best), facts={**row.facts, "lr": choices[row.key].words()}) for row in rows
    ]
    return settled, tuning_notes(choices, search, updates), record


def _rates_note(base: Base, rows: Sequence[Row]) -> str:
    """At which learning rates rows train that nothing was searched for."""
    rates = {method_class(base.method(row)).title: base.load(row).training.lr for row in rows}
    if set(rates.values()) == {Base(base.recipe).load(Row("", "")).training.lr}:
        return "Every method at the recipe's learning rate; --tune searches one for each."
    by_rate: dict[str, list[str]] = {}
    for title, rate in sorted(rates.items(), key=lambda item: (str(item[1]) == "auto", item[1])):
        by_rate.setdefault(rate if rate == "auto" else f"{rate:g}", []).append(title)
    words = "; ".join(f"{rate}: {', '.join(titles)}" for rate, titles in by_rate.items())
    return f"Learning rates as given, not searched here. {words}."


def _tables(plan: Comparison, read_curve: ReadCurve, grid: RunnableGrid, outcomes: CellOutcomes) -> list[Table]:
    bounds = frozenset(row.key for row in grid.rows if _over_budget(row.key))
    results = results_table("results", "Methods at equal budget", grid, outcomes, over_budget=bounds)
    tables = [results]
    if plan.reference in plan.methods and len(plan.methods) > 1:
        title = f"Differences to {method_class(plan.reference).title}"
        tables.append(differences_table("differences", title, results, plan.reference))
    if plan.targets:  # curves are read from the runs' logs, which may be gone
        tables += target_tables(plan.targets, results, grid, outcomes, read_curve)
    return tables


def _over_budget(name: str) -> bool:
    return method_class(name).over_budget
