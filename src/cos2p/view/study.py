"""A study's folder or its record → its part of the document: tables with intervals, curves with bands over seeds, a
sweep's panels."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cos2p.errors import RunError
from cos2p.studies.columns import CELLS, CLIENT_TOP1, RU, RUNS, STUDY, TOP1, TRIAL_PREFIX
from cos2p.studies.columns import Column as StudyColumn
from cos2p.tracking.files import explained
from cos2p.view.build import RunSource
from cos2p.view.curves import row_curves

LOG_SPAN = 50.0
"""An axis of positive numbers whose largest is this many times the smallest is drawn to a logarithmic scale."""
NOTHING_YET: dict[str, Any] = {"seeds": [], "cells": [], "rows": [], "tables": []}


def is_study(folder: Path) -> bool:
    return any((folder / name).exists() for name in (STUDY, RUNS, CELLS))


def read_study(folder: Path) -> dict[str, Any]:
    """study.json, or the same from the record of a published study; a study that only searches yet has neither."""
    path = folder / STUDY
    if not path.is_file():
        return _from_record(folder) if (folder / RUNS).is_file() else {"title": folder.resolve().name, **NOTHING_YET}
    with explained(path):
        text = path.read_text(encoding="utf-8")
    try:
        found = json.loads(text)
        if not isinstance(found, dict) or not isinstance(found["tables"], list):
            raise ValueError("no tables in it")
    except (ValueError, LookupError, RecursionError) as error:
        raise RunError(f"{path} is not a study's ({error}); run the study again to write it anew") from None
    return found


def _from_record(folder: Path) -> dict[str, Any]:
    from cos2p.studies.record import read_record  # with it come all methods: 0.3 s that only records need

    return read_record(folder).to_dict()


class StudySource:
    """One study folder, looked at again and again; the logs of its cells are read only as far as they are new."""

    def __init__(self, folder: str | Path, may_be_empty: bool = False) -> None:
        self.folder, self._may_be_empty = Path(folder), may_be_empty
        self._runs: dict[str, RunSource] = {}
        self._stamp: tuple[Any, ...] = ()

    def refresh(self, on_progress: Callable[[str], None] = lambda cell: None) -> bool:
        """Read what is new, calling `on_progress` with each cell; returns whether anything is."""
        changed = []
        for name, run in self._cells().items():
            on_progress(name)
            changed.append(run.refresh())
        stamp = self._stamps()
        anew, self._stamp = stamp != self._stamp, stamp
        return anew or any(changed)

    def _stamps(self) -> tuple[Any, ...]:
        results = [self.folder / CELLS / name / "result.json" for name in self._runs]
        paths = [self.folder / STUDY, self.folder / RUNS, *results]
        return tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)

    def _cells(self) -> dict[str, RunSource]:
        folder = self.folder / CELLS
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.is_dir() and not path.name.startswith(TRIAL_PREFIX) and path.name not in self._runs:
                self._runs[path.name] = RunSource(path)
        return self._runs

    def document(self, page_folder: Path | None = None) -> dict[str, Any]:
        """`page_folder`: the folder that the page will stand in, for links to the runs; None: without links."""
        found = read_study(self.folder)
        if not found["tables"] and not self._may_be_empty:
            raise RunError(
                f"{self.folder} has no study.json yet; wait until the first run has begun, or name the runs in cells/"
            )
        try:
            return self._written(found, page_folder)
        except (LookupError, TypeError, AttributeError) as error:
            raise RunError(
                f"{self.folder / STUDY} is not as cos2p writes it ({type(error).__name__}: {error}); "
                "run the study again to write it anew"
            ) from None

    def _written(self, found: Mapping[str, Any], page_folder: Path | None) -> dict[str, Any]:
        cells = found["cells"]
        return {
            "name": self.folder.resolve().name,
            "kind": str(found.get("kind", "")),  # empty while it only searches and has no study.json
            "title": str(found["title"]),
            "recipe": str(found.get("recipe", "")),
            "command": str(found.get("command", "")),
            "seeds": [int(seed) for seed in found["seeds"]],
            "updates": [int(length) for length in found.get("lengths", ())],
            "done": sum(cell["state"] == "done" for cell in cells),
            "cells": len(cells),
            "notes": [str(note) for part in ("notes", "short_runs") for note in found.get(part, ())],
            "versions": [str(version) for version in found.get("versions", ())],
            "tables": [_table(table) for table in found["tables"]],
            "links": {f"{CELLS}/{name}": self._link(name, page_folder) for name in self._runs},
            "curves": [self._curve(row) for row in found["rows"]],
            "sweep": _panels(found) if 1 <= len(found.get("axes") or {}) <= 2 else [],
            "failures": [(cell["name"], str(cell["failure"])) for cell in cells if cell["state"] == "failed"],
        }

    def _link(self, name: str, page_folder: Path | None) -> str:
        """From the page to a run: to its own page if it has one, else to its folder."""
        if page_folder is None:
            return ""
        run = self.folder / CELLS / name
        target = run / "report.html" if (run / "report.html").is_file() else run
        way = quote(os.path.relpath(target.resolve(), page_folder.resolve()))
        return f"./{way}" if target != run else f"./{way}/"

    def _curve(self, row: Mapping[str, Any]) -> dict[str, Any]:
        runs = [self._runs[name] for name in row["cells"].values() if name in self._runs]
        return row_curves(str(row["key"]), str(row["title"]), [run.series() for run in runs])


def _table(table: Mapping[str, Any]) -> dict[str, Any]:
    """As study.json has it, as far as the page needs it. LookupError if something of that is missing."""
    keys = [column["key"] for column in table["columns"]]
    rows = [
        {name: row[name] for name in ("title", "facts", "over_budget", "runs", "failures", "waiting")}
        | {"figures": {key: row["figures"][key] for key in keys}}
        for row in table["rows"]
    ]
    kept = {name: table[name] for name in ("title", "facts", "columns", "notes")}
    return {**kept, "rows": rows, "baselines": table.get("baselines") or {}}


# ---------------------------------------------------------------- a sweep's panels


def _panels(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each figure one panel over each axis, with a line for each value of the other axis."""
    axes = {str(name): [str(value) for value in axis["values"]] for name, axis in found["axes"].items()}
    names = list(axes)
    panels = []
    for along in names[:1] if found.get("kind") == "frontier" else names:  # methods are no scale
        across = next((name for name in names if name != along), None)
        for column in (TOP1, CLIENT_TOP1, RU):
            lines = [_sweep_line(found, column, along, across, value) for value in (axes[across] if across else [""])]
            panels.append(_panel(column, along, axes[along], lines))
    return panels


def _panel(column: StudyColumn, axis: str, values: list[str], lines: list[dict[str, Any]]) -> dict[str, Any]:
    numbers = [_number(value) for value in values]
    positive = [number for number in numbers if isinstance(number, float) and number > 0]
    log = len(positive) == len(numbers) and max(positive) / min(positive) >= LOG_SPAN
    return {"column": column.to_dict(), "axis": axis, "log": log, "lines": lines}


def _sweep_line(
    found: Mapping[str, Any], column: StudyColumn, along: str, across: str | None, value: str
) -> dict[str, Any]:
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
    """A value without a place on a scale of numbers stays a word."""
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text
