"""A study for a terminal: each table with the columns that matter most, and where the rest is."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table as Layout
from rich.text import Text

from cos2p.studies.report import Report
from cos2p.studies.tables import Table, baseline_notes
from cos2p.terminal.formatting import printable

MAIN_COLUMNS = ("perplexity", "client_perplexity", "answers", "top1", "f1", "client_top1", "ru", "virtual_seconds")


def summary(report: Report, folder: Path) -> RenderableType:
    parts: list[RenderableType] = [Text(printable(report.title), style="bold")]
    for table in report.tables:
        parts += [Text(f"\n{printable(table.title)}"), _table(table)]
    notes = [text for name, text in report.provenance() if name == "note"]
    notes += dict.fromkeys(note for table in report.tables for note in baseline_notes(table.baselines))
    parts += [Text(printable(note), style="dim") for note in notes]
    tables = [f"{table.name}.csv" for table in report.tables]
    names = ["table.md", "report.html", *report.pictures, "study.json", *tables, "runs.csv", "tuning.json"]
    there = [name for name in names if (folder / name).exists()]
    parts.append(Text(f"\nin {shlex.quote(str(folder))}: {', '.join(there)}"))
    return Group(*parts)


def _table(table: Table) -> Layout:
    layout = Layout(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    columns = [column for column in table.columns if column.key in MAIN_COLUMNS] or list(table.columns)
    layout.add_column("")
    for column in columns:
        layout.add_column(column.heading, justify="right", no_wrap=True)
    for line in table.lines:
        figures = [line.figures[column.key] for column in columns]
        texts = [
            Text(figure.write(column), style="bold" if figure.best else "")
            for column, figure in zip(columns, figures, strict=True)
        ]
        layout.add_row(Text(f"{printable(line.title)} {line.marks}".rstrip()), *texts)
    return layout
