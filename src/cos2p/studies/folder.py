"""The study's folder.

DIR/study.json        everything for programs: rows, cells with their figures, tables, learning rates tried and chosen
DIR/table.md          the tables for people
DIR/report.html       the page, with pictures: written at the end, as `cos2p report DIR` does
DIR/<table>.csv       the same figures, unrounded; runs.csv has one line for each run
DIR/cells/<name>/     one run folder for each cell
DIR/logs/<name>.log   what a cell's process wrote, if anything
DIR/failures.json     why cells failed
"""

from __future__ import annotations

import fcntl
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cos2p.errors import RunError
from cos2p.runtime.run_folder import check_same_recipe
from cos2p.studies.grid import Cell, CellOutcome
from cos2p.studies.report import Report, runs_csv, to_csv, to_markdown
from cos2p.tracking.files import explained, read_json, write_atomic

MARKER = ".cos2p-study"
"""Names the kind of study; locked while one is at work, and the lock dies with its process."""

KEPT_FAILURES = (3, 4, 8, 9)
"""Exit codes of failures that come again with the same recipe: impossible submodel, memory, training, refusal."""


@contextmanager
def study_folder(path: str | Path, kind: str) -> Iterator[Path]:
    """The study's folder, made if need be, for one process at a time. Another folder is refused and left alone."""
    folder = Path(path)
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        marker = folder / MARKER
        if any(folder.iterdir()) and not marker.exists():
            raise RunError(f"{folder} has files but is not a study's folder; choose another one with --out")
        lock = marker.open("a+", encoding="utf-8")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"another process is at work on the study in {folder}; wait for it or stop it") from None
        lock.seek(0)
        found = lock.read().strip()
        if found and found != kind:
            raise RunError(f"{folder} holds a study of the kind {found!r}, not {kind!r}; choose another --out")
        if not found:
            lock.write(kind + "\n")
            lock.flush()
        with explained(folder):
            (folder / "cells").mkdir(exist_ok=True)
        yield folder


def write_report(report: Report, folder: Path) -> None:
    """Write the tables, each file whole or not at all."""
    files = {
        "study.json": to_json(report.to_dict()),
        "table.md": to_markdown(report),
        "runs.csv": runs_csv(report),
        **{f"{table.name}.csv": to_csv(table) for table in report.tables},
    }
    for name, text in files.items():
        write_atomic(folder / name, text.encode())


def to_json(values: Any) -> str:
    """JSON that every reader takes: what is not a finite number becomes null."""
    return json.dumps(finite(values), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def finite(value: Any) -> Any:
    """The same with null for every number that is not finite."""
    if isinstance(value, Mapping):
        return {str(key): finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def earlier_outcome(cell: Cell, folder: Path, retry: bool = False) -> CellOutcome | None:
    """The cell's outcome from an earlier start of the study; None if it has to run.

    Failures that would come again are kept too, unless `retry`.
    """
    run = folder / "cells" / cell.name
    if (run / "recipe.toml").exists():
        check_same_recipe(cell.recipe, run)
    if (run / "result.json").exists():
        return CellOutcome(cell.name, read_json(run / "result.json"), kept=True)
    failure = Failures(folder).get(cell)
    if failure is None or retry or failure["exit_code"] not in KEPT_FAILURES:
        return None
    return CellOutcome(cell.name, failure=failure["reason"], exit_code=failure["exit_code"], kept=True)


class Failures:
    """failures.json: cell → reason, exit code, and the digest of the recipe that failed."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "failures.json"

    def read(self) -> dict[str, Any]:
        return read_json(self.path) if self.path.exists() else {}

    def get(self, cell: Cell) -> dict[str, Any] | None:
        entry = self.read().get(cell.name)
        return dict(entry) if entry and entry["digest"] == cell.digest else None

    def note(self, cell: Cell, outcome: CellOutcome, traceback: str = "") -> None:
        """Remember a failure, or forget it once the cell succeeded."""
        known = self.read()
        if outcome.ok and cell.name not in known:
            return
        known.pop(cell.name, None)
        if not outcome.ok:
            entry = {"reason": outcome.failure, "exit_code": outcome.exit_code, "digest": cell.digest}
            known[cell.name] = entry | ({"traceback": traceback} if traceback else {})
        write_atomic(self.path, to_json(known).encode())
