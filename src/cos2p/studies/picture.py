"""One picture of several frontiers, which were run one after the other: from their records alone.

    python -m cos2p.studies.picture OUT.svg RECORD [RECORD ...]

A method has one line through all budgets. Where two records have the same method at the same budget, the later one
named is drawn.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cos2p.errors import ConfigError, Cos2pError
from cos2p.studies.frontier_plot import plot
from cos2p.studies.record import read_record
from cos2p.studies.tables import Figure, Line, Table
from cos2p.tracking.files import write_atomic


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
    """As SVG. ConfigError for records that are not frontiers, or not of one recipe."""
    tables, recipes = [], set()
    for record in records:
        report = read_record(record)
        by_budget = [table for table in report.tables if table.name == "by_budget"]
        if not by_budget:
            raise ConfigError(f"{record} is the record of a {report.kind}, which has no budgets; name frontiers")
        tables += by_budget
        recipes.add(report.recipe)
    if len(recipes) != 1:
        raise ConfigError(f"these are of {', '.join(sorted(recipes))}; a picture is of one recipe")
    return plot(f"{recipes.pop()}: server top-1 by bytes per device", joined(tables))


def main(arguments: Sequence[str]) -> int:
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    out, *records = map(Path, arguments)
    try:
        write_atomic(out, picture(records).encode())
    except Cos2pError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
