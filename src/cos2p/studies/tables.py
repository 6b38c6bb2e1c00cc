"""Tables over matched seeds: means with their 95 % intervals, the best in bold, paired differences to a reference."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cos2p.numerics.metrics import mean_interval
from cos2p.studies.columns import COLUMNS, DIFFERENCES, Column
from cos2p.studies.grid import CellOutcomes, Grid, Row
from cos2p.tracking.figure_parts import BASELINES

MISSING = "–"


@dataclass(frozen=True)
class Figure:
    """One figure of a row: its value for each seed, their mean, and half the width of the mean's 95 % interval."""

    by_seed: Mapping[int, float]
    mean: float | None
    half: float | None
    """None for fewer than two seeds."""
    best: bool = False

    @classmethod
    def of(cls, by_seed: Mapping[int, float]) -> Figure:
        if not by_seed:
            return cls({}, None, None)
        mean, half = mean_interval(by_seed.values())
        return cls(dict(by_seed), mean, None if math.isnan(half) else half)

    @property
    def clear(self) -> bool:
        """A difference whose interval does not hold 0."""
        return self.mean is not None and self.half is not None and abs(self.mean) > self.half

    def write(self, column: Column) -> str:
        """
        >>> from cos2p.studies.columns import TOP1
        >>> Figure({}, 0.631, 0.0123).write(TOP1), Figure({}, 0.631, None).write(TOP1), Figure.of({}).write(TOP1)
        ('63.1 ± 1.2', '63.1', '–')
        """
        if self.mean is None:
            return MISSING
        mean = column.write(self.mean)
        return mean if self.half is None else f"{mean} ± {replace(column, signed=False).write(self.half)}"


@dataclass(frozen=True)
class Line:
    key: str
    title: str
    figures: Mapping[str, Figure]
    runs: Mapping[int, str]
    """Seed → name of the run's folder under cells/, of finished runs."""
    failures: Mapping[int, str] = field(default_factory=dict)
    """Seed → why there is no run."""
    waiting: tuple[int, ...] = ()
    """Seeds that have not run yet."""
    over_budget: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        return not self.failures and not self.waiting

    @property
    def marks(self) -> str:
        """Marks that a reader must know before comparing: * over the budget, † not all seeds."""
        return ("*" if self.over_budget else "") + ("" if self.whole else "†")


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    facts: tuple[str, ...] = ()
    """Headings of the columns before the figures."""
    notes: tuple[str, ...] = ()
    reference: str = ""
    """The row that all others are compared with, in a table of differences."""
    baselines: Mapping[str, float] = field(default_factory=dict)
    """To compare top-1 with: "chance" and "majority" (always the most frequent class), as far as the runs know them."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Table:
        """The counterpart of `to_dict`, for tables that are not made from runs anew."""
        columns = tuple(Column(**column) for column in values["columns"])
        return cls(
            values["name"],
            values["title"],
            columns,
            tuple(_line_of(row, columns) for row in values["rows"]),
            tuple(values["facts"]),
            tuple(values["notes"]),
            values["reference"],
            values["baselines"],
        )

    def line(self, key: str) -> Line:
        return next(line for line in self.lines if line.key == key)

    def to_dict(self) -> dict[str, Any]:
        """For study.json: figures as in `result.json` (shares, seconds, bytes), none rounded."""
        return {
            "name": self.name,
            "title": self.title,
            "facts": list(self.facts),
            "columns": [column.to_dict() for column in self.columns],
            "rows": [_line_dict(line, self.columns) for line in self.lines],
            "notes": list(self.notes),
            "reference": self.reference,
            "baselines": dict(self.baselines),
        }


def results_table(
    name: str,
    title: str,
    grid: Grid,
    outcomes: CellOutcomes,
    rows: Sequence[Row] | None = None,
    columns: Sequence[Column] = COLUMNS,
    over_budget: frozenset[str] = frozenset(),
) -> Table:
    """Means over seeds. Bold is what is surely the best of its column, among rows that keep the budget and have all
    seeds."""
    rows = grid.rows if rows is None else rows
    lines = [_line(row, grid, outcomes, columns, row.key in over_budget) for row in rows]
    columns = _known(columns, lines)
    for column in columns:
        lines = with_best(lines, column)
    facts = tuple(dict.fromkeys(fact for row in rows for fact in row.facts))
    baselines = _baselines(lines, outcomes)
    notes = (*_legend(lines), *baseline_notes(baselines))
    return Table(name, title, tuple(columns), tuple(lines), facts, notes, baselines=baselines)


def _known(columns: Sequence[Column], lines: Sequence[Line]) -> Sequence[Column]:
    """Without those that no run has, such as top-5 of three classes; all of them before the first run is done."""
    known = [c for c in columns if any(line.figures[c.key].mean is not None for line in lines)]
    return known or columns


def differences_table(
    name: str, title: str, results: Table, reference: str, columns: Sequence[Column] = DIFFERENCES
) -> Table:
    """Every other row minus the reference, seed by seed; only seeds that both have count."""
    against = results.line(reference)
    columns = [column for column in columns if column.key in {known.key for known in results.columns}]
    lines = []
    for line in results.lines:
        if line.key == reference:
            continue
        figures = {}
        for column in columns:
            own, other = line.figures[column.key].by_seed, against.figures[column.key].by_seed
            figures[column.key] = Figure.of({seed: own[seed] - other[seed] for seed in own if seed in other})
            figures[column.key] = replace(figures[column.key], best=figures[column.key].clear)
        lines.append(replace(line, figures=figures))
    note = (
        f"Row minus {against.title}, seed by seed: mean and 95 % interval (Student's t) of the differences; "
        "in bold where the interval does not hold 0."
    )
    return Table(name, title, tuple(columns), tuple(lines), results.facts, (note,), reference)


def _line(row: Row, grid: Grid, outcomes: CellOutcomes, columns: Sequence[Column], over_budget: bool) -> Line:
    runs, failures, waiting = {}, {}, []
    results: dict[int, Mapping[str, Any]] = {}
    for seed in grid.seeds:
        name = grid.name(row.key, seed)
        outcome = outcomes.get(name)
        if outcome is None:
            waiting.append(seed)
        elif outcome.result is None:
            failures[seed] = outcome.failure
        else:
            runs[seed], results[seed] = name, outcome.result
    figures = {}
    for column in columns:
        values = {seed: column.read(result) for seed, result in results.items()}
        figures[column.key] = Figure.of({seed: value for seed, value in values.items() if value is not None})
    over_budget = over_budget or any("over_budget" in result for result in results.values())
    return Line(row.key, row.title, figures, runs, failures, tuple(waiting), over_budget, row.facts)


def with_best(lines: list[Line], column: Column) -> list[Line]:
    """Mark the row whose interval lies clear of those of all others, on the better side.

    Where intervals overlap, a single seed gives none, or figures are written alike, nobody is seen to be the best.
    """
    sign = {"more": 1, "less": -1, "": 0}[column.better]
    figures = {line.key: line.figures[column.key] for line in lines if line.whole and not line.over_budget}
    spans = {key: (sign * f.mean, f.half) for key, f in figures.items() if f.mean is not None}
    if not sign or len(spans) < 2:
        return lines
    first = max(spans, key=lambda key: spans[key][0])
    others = {key: span for key, span in spans.items() if key != first}
    alike = any(column.write(mean) == column.write(spans[first][0]) for mean, _ in others.values())
    if alike or not all(_clear(spans[first], span) for span in others.values()):
        return lines
    return [
        replace(line, figures={**line.figures, column.key: replace(line.figures[column.key], best=True)})
        if line.key == first
        else line
        for line in lines
    ]


def _clear(higher: tuple[float, float | None], lower: tuple[float, float | None]) -> bool:
    """Two (mean, half interval) that do not touch."""
    return higher[1] is not None and lower[1] is not None and higher[0] - higher[1] > lower[0] + lower[1]


def _baselines(lines: Sequence[Line], outcomes: CellOutcomes) -> dict[str, float]:
    """The mean over the table's runs of what needs no training."""
    results = [outcomes[name].result or {} for line in lines for name in line.runs.values()]
    found = {key: [result[key] for result in results if result.get(key) is not None] for key in BASELINES}
    return {key: statistics.fmean(values) for key, values in found.items() if values}


def baseline_notes(baselines: Mapping[str, float]) -> list[str]:
    """
    >>> baseline_notes({"chance": 0.1, "majority": 0.1135})
    ['To compare top-1 with: chance 10.0 %, always the most frequent class 11.3 %.']
    """
    words = [f"{BASELINES[key]} {100 * share:.1f} %" for key, share in baselines.items()]
    return [f"To compare top-1 with: {', '.join(words)}."] if words else []


def _legend(lines: Sequence[Line]) -> list[str]:
    notes = ["Mean and 95 % interval (Student's t) over seeds; in bold what lies clear of all others."]
    if any(line.over_budget for line in lines):
        notes.append("* does not keep the devices' budget: a bound to compare with, never bold.")
    if any(not line.whole for line in lines):
        notes.append("† not all seeds: never bold.")
    return notes


def _line_dict(line: Line, columns: Sequence[Column]) -> dict[str, Any]:
    return {
        "key": line.key,
        "title": line.title,
        "facts": dict(line.facts),
        "over_budget": line.over_budget,
        "runs": {str(seed): f"cells/{name}" for seed, name in line.runs.items()},
        "failures": {str(seed): reason for seed, reason in line.failures.items()},
        "waiting": list(line.waiting),
        "figures": {
            column.key: {
                "mean": figure.mean,
                "half": figure.half,
                "best": figure.best,
                "by_seed": {str(seed): value for seed, value in figure.by_seed.items()},
            }
            for column in columns
            for figure in [line.figures[column.key]]
        },
    }


def _line_of(row: Mapping[str, Any], columns: Sequence[Column]) -> Line:
    figures = {}
    for column in columns:
        figure = row["figures"][column.key]
        by_seed = {int(seed): value for seed, value in figure["by_seed"].items()}
        figures[column.key] = Figure(by_seed, figure["mean"], figure["half"], figure["best"])
    runs = {int(seed): folder.removeprefix("cells/") for seed, folder in row["runs"].items()}
    failures = {int(seed): reason for seed, reason in row["failures"].items()}
    waiting = tuple(row["waiting"])
    return Line(row["key"], row["title"], figures, runs, failures, waiting, row["over_budget"], row["facts"])
