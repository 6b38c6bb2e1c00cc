"""A study's tables as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote

from cos2p.studies.report import Report
from cos2p.studies.tables import MISSING, Line, Table

RECORD_FILES = "- files: [every run](runs.jsonl), [the recipe](recipe.toml) that their settings are changes of"


def to_markdown(report: Report, linked: bool = True) -> str:
    """The page; `linked` if the runs' folders lie next to it, else their record does."""
    parts = [f"# {plain(report.title)}"]
    entries = [f"- {name}: {(code if name == 'command' else plain)(text)}" for name, text in report.provenance()]
    parts.append("\n".join(entries if linked else [*entries, RECORD_FILES]))
    for table in report.tables:
        parts.append(f"## {plain(table.title)}")
        parts.append(_table(table, linked))
        parts.append("\n".join(f"- {plain(note)}" for note in table.notes))
    parts.append("## Every run")
    parts.append(_runs(report, linked))
    if report.failures:
        parts.append("## Failed runs")
        parts.append("\n".join(f"- {plain(name)}: {plain(reason)}" for name, reason in report.failures.items()))
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(table: Table, linked: bool) -> str:
    headings = ["", *table.facts, *(column.heading for column in table.columns), "runs"]
    rows = []
    for line in table.lines:
        figures = []
        for column in table.columns:
            figure = line.figures[column.key]
            text = figure.write(column)
            text = f"**{text}**" if figure.best else text
            figures.append(_linked(text, _only(line)) if linked and text != MISSING else text)
        facts = [plain(line.facts.get(fact, "")) for fact in table.facts]
        marks = line.marks.replace("*", "\\*")
        rows.append([f"{plain(line.title)} {marks}".rstrip(), *facts, *figures, _seeds(line, linked)])
    return _grid([plain(heading) for heading in headings], rows, left=1 + len(table.facts))


def _only(line: Line) -> str:
    """The one run behind a line's figures; empty if there are several: those are linked from the last column."""
    return next(iter(line.runs.values())) if len(line.runs) == 1 else ""


def _linked(text: str, run: str) -> str:
    """A link from the study's folder to a run's."""
    return f"[{text}]({quote(f'cells/{run}/')})" if run else text


def _seeds(line: Line, linked: bool) -> str:
    runs = [_linked(str(seed), name if linked else "") for seed, name in line.runs.items()]
    return " ".join([*runs, *(f"{seed} failed" for seed in line.failures), *(f"{seed} …" for seed in line.waiting)])


def _runs(report: Report, linked: bool) -> str:
    """One row for each run, every figure a link to its folder."""
    columns = report.tables[0].columns if report.tables else ()
    rows = []
    for row, seed, name, outcome in report.runs():
        if outcome.result is None:
            continue
        values = [(column, column.read(outcome.result)) for column in columns]
        figures = [
            MISSING if value is None else _linked(column.write(value), name if linked else "")
            for column, value in values
        ]
        rows.append([plain(row.title), str(seed), *figures])
    return _grid(["", "seed", *(plain(column.heading) for column in columns)], rows, left=1)


def _grid(headings: list[str], rows: Iterable[list[str]], left: int) -> str:
    rule = [":--" if number < left else "--:" for number in range(len(headings))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [headings, rule, *rows])


def plain(text: str) -> str:
    """Text that stays text: nothing in it is taken for Markdown or HTML, or ends a table cell.

    >>> plain("a|b <i> *c*")
    'a\\\\|b \\\\<i> \\\\*c\\\\*'
    """
    return re.sub(r"([\\|`*_\[\]<#~])", r"\\\1", " ".join(text.split()))


def code(text: str) -> str:
    """A code span, whatever backticks are in it."""
    text = " ".join(text.split())
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    return f"{fence}{text}{fence}" if len(fence) == 1 else f"{fence} {text} {fence}"


def to_csv(table: Table) -> str:
    """One line for each row: figures as in `result.json` (shares, seconds, bytes), mean and half interval."""
    parts = [f"{column.key}{part}" for column in table.columns for part in ("", "_half")]
    lines: list[list[object]] = [["row", "title", *table.facts, "over_budget", "seeds", *parts]]
    for line in table.lines:
        figures = [line.figures[column.key] for column in table.columns]
        values = [_exact(value) for figure in figures for value in (figure.mean, figure.half)]
        facts = [line.facts.get(fact, "") for fact in table.facts]
        lines.append([line.key, line.title, *facts, int(line.over_budget), " ".join(map(str, line.runs)), *values])
    return _csv(lines)


def runs_csv(report: Report) -> str:
    """One line for each run."""
    columns = report.tables[0].columns if report.tables else ()
    lines: list[list[object]] = [["row", "seed", "folder", "failure", *(column.key for column in columns)]]
    for row, seed, name, outcome in report.runs():
        values = [column.read(outcome.result) if outcome.result else None for column in columns]
        lines.append([row.key, seed, f"cells/{name}", outcome.failure, *map(_exact, values)])
    return _csv(lines)


def _exact(value: float | None) -> str:
    return "" if value is None else repr(value)


def _csv(lines: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue()
