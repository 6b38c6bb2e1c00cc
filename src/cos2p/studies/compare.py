"""`compare`: every method at equal budget, equal data and an equal number of client updates. The paper's main table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from cos2p.errors import ConfigError
from cos2p.methods import method_class, methods
from cos2p.studies.grid import CellOutcomes, Row, RunnableGrid
from cos2p.studies.report import StudyPlan
from cos2p.studies.tables import Table, differences_table, results_table
from cos2p.studies.target import ReadCurve, Target, check_targets, target_tables
from cos2p.studies.tuning import Search

REFERENCE = "cos2p"


def choose_methods(wanted: str) -> tuple[str, ...]:
    """`all`, or names with commas. All are ordered as in the paper: bounds first, then the rivals, then Co-S²P."""
    if wanted.strip() == "all":
        return tuple(sorted(methods(), key=lambda name: (name.startswith(REFERENCE), not _over_budget(name))))
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    if not names:
        raise ConfigError(f"--methods {wanted!r} names none; known: all, {', '.join(sorted(methods()))}")
    return tuple(method_class(name).name for name in names)


def comparison(
    plan: StudyPlan,
    methods: Sequence[str],
    reference: str = REFERENCE,
    search: Search | None = None,
    targets: Sequence[Target] = (),
    read_curve: ReadCurve = lambda cell: (),
) -> StudyPlan:
    """`reference`: the method that differences are taken to; without it there is no table of differences. `targets`:
    accuracies; a table for each says what every method has spent when it first has them."""
    check_targets(targets, methods)
    rows = tuple(Row(name, method_class(name).title, method=name) for name in methods)
    tables = partial(_tables, reference if reference in methods else "", targets, read_curve)
    title = "methods at equal budget"
    return replace(plan, kind="compare", title=title, rows=rows, tables=tables, of_methods=True, search=search)


def _tables(
    reference: str, targets: Sequence[Target], read_curve: ReadCurve, grid: RunnableGrid, outcomes: CellOutcomes
) -> list[Table]:
    bounds = frozenset(row.key for row in grid.rows if _over_budget(row.key))
    results = results_table("results", "Methods at equal budget", grid, outcomes, over_budget=bounds)
    tables = [results]
    if reference and len(grid.rows) > 1:
        title = f"Differences to {method_class(reference).title}"
        tables.append(differences_table("differences", title, results, reference))
    if targets:  # curves are read from the runs' logs, which may be gone
        tables += target_tables(targets, results, grid, outcomes, read_curve)
    return tables


def _over_budget(name: str) -> bool:
    return method_class(name).over_budget
