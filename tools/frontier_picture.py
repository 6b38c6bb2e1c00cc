"""Several frontiers of one recipe, which were run one after the other, as one picture, from their records.

    python -m tools.frontier_picture OUT.svg RECORD [RECORD ...]

A method has one line through all budgets. Where two records have the same method at the same budget, the later one is
drawn.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cos2p.studies.record import read_record
from cos2p.studies.tables import Figure, Line, Table
from tools.frontier_plot import plot


def joined(tables: Sequence[Table]) -> Table:
    """Tables by budget as one: every method, every budget, the smallest first."""
    columns = {column.key: column for table in tables for column in table.columns}
    order = sorted(columns, key=lambda key: float(key.removeprefix("at_")))
    lines: dict[str, Line] = {}
    for table in tables:
        for line in table.lines:
            known = lines.get(line.title, replace(line, figures={key: Figure.of({}) for key in order}))
            found = {key: figure for key, figure in line.figures.items() if figure.mean is not None}
            lines[line.title] = replace(known, figures={**known.figures, **found})
    return replace(tables[0], columns=tuple(columns[key] for key in order), lines=tuple(lines.values()))


def picture(records: Sequence[Path]) -> str:
    """As SVG, of frontiers of one recipe."""
    tables, recipes = [], set()
    for record in records:
        report = read_record(record)
        by_budget = [table for table in report.tables if table.name == "by_budget"]
        if not by_budget:
            raise SystemExit(f"{record} is the record of a {report.kind}, which has no budgets; name frontiers")
        tables += by_budget
        recipes.add(report.recipe)
    if len(recipes) != 1:
        raise SystemExit(f"these are of {', '.join(sorted(recipes))}; a picture is of one recipe")
    return plot(f"{recipes.pop()}: server top-1 by bytes per device", joined(tables))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    Path(sys.argv[1]).write_text(picture([Path(record) for record in sys.argv[2:]]), encoding="utf-8")
