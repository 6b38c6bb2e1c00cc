"""A study folder → its part of the document: tables with intervals, curves with bands over seeds, a sweep's panels."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cos2p.errors import RunError
from cos2p.studies.columns import CLIENT_TOP1, COLUMNS, RU, TOP1
from cos2p.studies.columns import Column as StudyColumn
from cos2p.studies.plots import LOG_SPAN
from cos2p.studies.tables import Figure as StudyFigure
from cos2p.tracking.files import explained
from cos2p.view import model
from cos2p.view.bands import row_curves
from cos2p.view.build import RunSource

CELL = re.compile(r"(?P<row>.+)-s(?P<seed>\d+)")
TUNING = "tune-"
KNOWN = {column.key: column for column in COLUMNS}


def is_study(folder: Path) -> bool:
    return (folder / "study.json").is_file() or (folder / "cells").is_dir()


def read_study(folder: Path) -> dict[str, Any]:
    """study.json; of a folder that was published without it, what its cells tell."""
    path = folder / "study.json"
    if not path.is_file():
        return _from_cells(folder)
    with explained(path):
        text = path.read_text(encoding="utf-8")
    try:
        found = json.loads(text)
        if not isinstance(found, dict) or not isinstance(found["tables"], list):
            raise ValueError("no tables in it")
    except (ValueError, LookupError) as error:
        raise RunError(f"{path} is not a study's ({error}); run the study again to write it anew") from None
    return found


class StudySource:
    """One study folder, looked at again and again; the logs of its cells are read only as far as they are new."""

    def __init__(self, folder: str | Path, may_be_empty: bool = False) -> None:
        self.folder, self._may_be_empty = Path(folder), may_be_empty
        self._runs: dict[str, RunSource] = {}
        self._stamp: tuple[Any, ...] = ()

    def refresh(self, told: Callable[[str], None] = lambda cell: None) -> bool:
        """Read what is new, telling of each cell; returns whether anything is."""
        changed = []
        for name, run in self._cells().items():
            told(name)
            changed.append(run.refresh())
        stamp = self._stamps()
        anew, self._stamp = stamp != self._stamp, stamp
        return anew or any(changed)

    def _stamps(self) -> tuple[Any, ...]:
        paths = [self.folder / "study.json", *(self.folder / "cells" / name / "result.json" for name in self._runs)]
        return tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)

    def _cells(self) -> dict[str, RunSource]:
        folder = self.folder / "cells"
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.is_dir() and not path.name.startswith(TUNING) and path.name not in self._runs:
                self._runs[path.name] = RunSource(path)
        return self._runs

    def document(self) -> model.Study:
        found = read_study(self.folder)
        if not found["tables"] and not self._may_be_empty:
            raise RunError(
                f"{self.folder} has no study.json and no cell that is done; wait, or name the runs in cells/"
            )
        try:
            return self._written(found)
        except (LookupError, TypeError, AttributeError) as error:
            raise RunError(
                f"{self.folder / 'study.json'} is not as cos2p writes it ({type(error).__name__}: {error}); "
                "run the study again to write it anew"
            ) from None

    def _written(self, found: Mapping[str, Any]) -> model.Study:
        seeds = [int(seed) for seed in found["seeds"]]
        tables = [_table(table, seeds) for table in found["tables"]]
        cells = found["cells"]
        return {
            "name": self.folder.resolve().name,
            "kind": str(found.get("kind", "")),
            "title": str(found["title"]),
            "recipe": str(found.get("recipe", "")),
            "command": str(found.get("command", "")),
            "seeds": seeds,
            "updates": found.get("updates") or None,
            "done": sum(cell["state"] == "done" for cell in cells),
            "cells": len(cells),
            "notes": [str(note) for note in found.get("notes", ())],
            "versions": [str(version) for version in found.get("versions", ())],
            "tables": tables,
            "curves": [self._curve(row) for row in found["rows"]],
            "sweep": _panels(found) if 1 <= len(found.get("axes") or {}) <= 2 else [],
            "failures": [(cell["name"], str(cell["failure"])) for cell in cells if cell["state"] == "failed"],
        }

    def _curve(self, row: Mapping[str, Any]) -> model.StudyCurve:
        runs = [self._runs[name] for name in row["cells"].values() if name in self._runs]
        return row_curves(str(row["key"]), str(row["title"]), [run.series() for run in runs])


# ---------------------------------------------------------------- tables


def _table(table: Mapping[str, Any], seeds: list[int]) -> model.Table:
    columns = [_column(column, table["name"]) for column in table["columns"]]
    facts = [str(fact) for fact in table["facts"]]
    return {
        "name": str(table["name"]),
        "title": str(table["title"]),
        "facts": facts,
        "columns": columns,
        "rows": [_row(row, facts, [column["key"] for column in columns], seeds) for row in table["rows"]],
        "notes": [str(note) for note in table["notes"]],
    }


def _column(column: Mapping[str, Any], table: str) -> model.Column:
    known = KNOWN.get(column["key"])
    return {
        "key": str(column["key"]),
        "title": str(column["title"]),
        "unit": str(column["unit"]),
        "scale": float(column["scale"]),
        "digits": known.digits if known else 2,
        "better": column["better"],
        "signed": bool(column.get("signed", "differences" in table)),
    }


def _row(row: Mapping[str, Any], facts: list[str], keys: list[str], seeds: list[int]) -> model.TableRow:
    whole = not row["failures"] and not row["waiting"]
    return {
        "key": str(row["key"]),
        "title": str(row["title"]),
        "marks": ("*" if row["over_budget"] else "") + ("" if whole else "†"),
        "facts": [str(row["facts"].get(fact, "")) for fact in facts],
        "figures": [
            {
                "mean": figure["mean"],
                "half": figure["half"],
                "best": bool(figure["best"]),
                "seeds": [figure["by_seed"].get(str(seed)) for seed in seeds],
            }
            for figure in (row["figures"][key] for key in keys)
        ],
        "failures": [f"seed {seed}: {reason}" for seed, reason in row["failures"].items()],
    }


# ---------------------------------------------------------------- a sweep's panels


def _panels(found: Mapping[str, Any]) -> list[model.SweepPanel]:
    """For each figure one panel over each axis, with a line for each value of the other axis."""
    axes = {str(name): [str(value) for value in axis["values"]] for name, axis in found["axes"].items()}
    names = list(axes)
    panels = []
    for along in names:
        across = next((name for name in names if name != along), None)
        for column in (TOP1, CLIENT_TOP1, RU):
            lines = [_sweep_line(found, column, along, across, value) for value in (axes[across] if across else [""])]
            panels.append(_panel(column, along, axes[along], lines))
    return panels


def _panel(column: StudyColumn, axis: str, values: list[str], lines: list[model.SweepLine]) -> model.SweepPanel:
    numbers = [_number(value) for value in values]
    positive = [number for number in numbers if isinstance(number, float) and number > 0]
    log = len(positive) == len(numbers) and max(positive) / min(positive) >= LOG_SPAN
    written = {"key": column.key, "title": column.title, "unit": column.unit, "scale": column.scale}
    return {"column": _column({**written, "better": column.better}, ""), "axis": axis, "log": log, "lines": lines}


def _sweep_line(
    found: Mapping[str, Any], column: StudyColumn, along: str, across: str | None, value: str
) -> model.SweepLine:
    points = []
    for row in found["tables"][0]["rows"]:
        figure = row["figures"][column.key]
        if figure["mean"] is not None and (across is None or row["facts"][across] == value):
            points.append((_number(row["facts"][along]), figure["mean"], figure["half"]))
    if all(isinstance(point[0], float) for point in points):
        points.sort(key=lambda point: point[0])
    return {
        "name": f"{across} {value}" if across else "",
        "x": [point[0] for point in points],
        "mean": [point[1] for point in points],
        "half": [point[2] for point in points],
    }


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


# ---------------------------------------------------------------- a folder of cells without study.json


def _from_cells(folder: Path) -> dict[str, Any]:
    """The table as the study had it, from result.json of each cell; which kind of study it was is not known."""
    results: dict[str, dict[int, dict[str, Any]]] = {}
    with explained(folder / "cells"):
        paths = sorted((folder / "cells").iterdir())
    for path in paths:
        match = CELL.fullmatch(path.name)
        if match is None or path.name.startswith(TUNING) or not (path / "result.json").is_file():
            continue
        with explained(path):
            text = (path / "result.json").read_text(encoding="utf-8")
        try:
            results.setdefault(match["row"], {})[int(match["seed"])] = dict(json.loads(text))
        except ValueError as error:
            raise RunError(f"{path / 'result.json'} is not a run's result ({error})") from None
    if not results:
        return {"title": folder.resolve().name, "seeds": [], "cells": [], "rows": [], "tables": []}
    seeds = sorted({seed for cells in results.values() for seed in cells})
    first = next(iter(next(iter(results.values())).values()))
    return {
        "title": str(first.get("recipe") or folder.name),
        "recipe": str(first.get("recipe") or ""),
        "seeds": seeds,
        "cells": [{"name": f"{row}-s{s}", "state": "done"} for row, cells in results.items() for s in cells],
        "rows": [
            {"key": row, "title": _title(row, cells), "cells": {str(seed): f"{row}-s{seed}" for seed in cells}}
            for row, cells in results.items()
        ],
        "tables": [_table_of_cells(results, seeds)],
    }


def _title(row: str, cells: Mapping[int, Mapping[str, Any]]) -> str:
    """The method's title if the row is named by the method, else the row's own name."""
    first = next(iter(cells.values()))
    return str(first.get("title") or row) if first.get("method") == row else row


def _table_of_cells(results: Mapping[str, Mapping[int, Mapping[str, Any]]], seeds: list[int]) -> dict[str, Any]:
    rows = []
    for row, cells in results.items():
        figures = {}
        for column in COLUMNS:
            values = {seed: column.read(result) for seed, result in cells.items()}
            figure = StudyFigure.of({seed: value for seed, value in values.items() if value is not None})
            by_seed = {str(seed): value for seed, value in figure.by_seed.items()}
            figures[column.key] = {"mean": figure.mean, "half": figure.half, "best": False, "by_seed": by_seed}
        missing = [seed for seed in seeds if seed not in cells]
        title = _title(row, cells)
        rows.append({"key": row, "title": title, "facts": {}, "over_budget": False, "failures": {}, "waiting": missing,
                     "figures": figures})  # fmt: skip
    columns = [replace(column, value=None) for column in COLUMNS]
    return {
        "name": "results",
        "title": "Results",
        "facts": [],
        "columns": [
            {"key": c.key, "title": c.title, "unit": c.unit, "scale": c.scale, "better": c.better} for c in columns
        ],
        "rows": rows,
        "notes": ["Mean and 95 % interval (Student's t) over seeds."],
    }
