"""A study's record: what is left of its folder when the runs' own files are thrown away.

runs.jsonl    one line for the study (rows, tables, notes), then one for each run (seed, method, settings, its whole
              result.json, its accuracy by what it had spent) and one for each trial of a search
recipe.toml   the recipe of one run; the others' `settings` are the fields in which they differ from it
table.md      the tables, made from runs.jsonl alone

    python -m cos2p.studies.record STUDY OUT     write the record of a study's folder
    python -m cos2p.studies.record RECORD        write table.md of a record anew
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cos2p.errors import Cos2pError, RunError
from cos2p.older_python import tomllib
from cos2p.studies.columns import CELLS, RUNS, STUDY, TARGET_PREFIX, TRIAL_PREFIX
from cos2p.studies.folder import finite
from cos2p.studies.grid import CellOutcome, Grid, Row
from cos2p.studies.report import Report, to_markdown
from cos2p.studies.tables import Table, differences_table, results_table
from cos2p.studies.target import read_curve
from cos2p.tracking.files import explained, read_json, write_atomic

RECIPE, TABLE = "recipe.toml", "table.md"

# ---------------------------------------------------------------- from a study's folder


def write_record(study: Path, out: Path) -> None:
    """Write the record of a study's folder; files of an earlier record are replaced."""
    values = read_json(study / STUDY)
    try:
        _write(values, study, out)
    except (LookupError, TypeError, AttributeError) as error:
        raise RunError(
            f"{study / STUDY} is not as this version writes it ({type(error).__name__}: {error}); "
            "give the study's command again: finished runs are kept"
        ) from None


def _write(values: Mapping[str, Any], study: Path, out: Path) -> None:
    recipes = {path.parent.name: _read_toml(path) for path in sorted((study / CELLS).glob(f"*/{RECIPE}"))}
    reference = _reference(values)
    if reference not in recipes:
        raise RunError(f"{study}: {reference} has no recipe.toml in cells/; wait until its first run has begun")
    with explained(out):
        out.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(study / CELLS / reference / RECIPE, out / RECIPE)
    lines = [_study_line(values), *_run_lines(values, study, recipes, recipes[reference]), *_trial_lines(values)]
    text = "".join(json.dumps(finite(line), ensure_ascii=False, allow_nan=False) + "\n" for line in lines)
    write_atomic(out / RUNS, text.encode())
    write_table(out)


def write_table(record: Path) -> None:
    """Write table.md from runs.jsonl."""
    write_atomic(record / TABLE, to_markdown(read_record(record), linked=False).encode())


def settings(base: Mapping[str, Any], own: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The fields in which a recipe differs from another, by their paths; one that it does not have is None.

    >>> settings({"seed": 0, "method": {"name": "a", "mu": 1}}, {"seed": 2, "method": {"name": "a"}})
    {'seed': 2, 'method.mu': None}
    """
    found: dict[str, Any] = {}
    for key in dict.fromkeys([*base, *own]):
        before, now = base.get(key), own.get(key)
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            found |= settings(before, now, f"{path}{key}.")
        elif before != now:
            found[f"{path}{key}"] = now
    return found


def _reference(study: Mapping[str, Any]) -> str:
    """The cell whose recipe stands for all: of the row that differences are taken to, else of the first."""
    rows = {row["key"]: row for row in study["rows"]}
    key = next((table["reference"] for table in study["tables"] if table["reference"]), next(iter(rows)))
    return str(rows[key]["cells"][str(study["seeds"][0])])


def _study_line(study: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("title", "recipe", "command", "updates", "seeds", "notes", "axes", "rows")
    tuning = study["tuning"] and {
        **study["tuning"],
        "rows": {key: _without(row, "tried") for key, row in study["tuning"]["rows"].items()},
    }
    return {
        "kind": "study",
        "study": study["kind"],
        **{key: study[key] for key in kept},
        "tables": [
            {
                "name": table["name"],
                "title": table["title"],
                "reference": table["reference"],
                "rows": [row["key"] for row in table["rows"]],
                "over_budget": [row["key"] for row in table["rows"] if row["over_budget"]],
                "whole": table if _stands_alone(table, study) else None,
            }
            for table in study["tables"]
        ],
        "tuning": tuning,
    }


def _stands_alone(table: Mapping[str, Any], study: Mapping[str, Any]) -> bool:
    """Whether a table cannot be made from the study's results anew: its rows are not the study's, or its figures are
    from the runs' logs."""
    if table["name"].startswith(TARGET_PREFIX):
        return True
    return not {row["key"] for row in table["rows"]} <= {row["key"] for row in study["rows"]}


def _run_lines(
    study: Mapping[str, Any], folder: Path, recipes: Mapping[str, Mapping[str, Any]], base: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """The runs of the tables in their order, then finished ones of an earlier choice of settings."""
    known = {cell["name"]: cell for cell in study["cells"] if cell["state"] != "waiting"}
    others = [name for name in recipes if name not in known and not name.startswith(TRIAL_PREFIX)]
    for name in [*known, *others]:
        cell = known.get(name, {})
        recipe = recipes.get(name, {})
        result = cell["result"] if cell else _finished(folder / CELLS / name)
        if cell or result is not None:
            yield {
                "kind": "run",
                "name": name,
                "seed": recipe.get("seed", cell.get("seed")),
                "method": recipe.get("method", {}).get("name"),
                "updates": recipe.get("schedule", {}).get("updates", cell.get("updates")),
                "settings": settings(base, recipe) if recipe else None,
                "failure": cell.get("failure", ""),
                "result": result,
                "curve": _curve(folder / CELLS / name) if result is not None else None,
            }


def _curve(run: Path) -> list[dict[str, Any]]:
    """Empty if the run's log was deleted."""
    return [point.to_dict() for point in read_curve(run)] if (run / "events.jsonl").exists() else []


def _finished(run: Path) -> dict[str, Any] | None:
    return read_json(run / "result.json") if (run / "result.json").exists() else None


def _trial_lines(study: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for key, row in (study["tuning"] or {"rows": {}})["rows"].items():
        for trial in row["tried"]:
            yield {"kind": "trial", "row": key, **_without(trial, "folder")}


def _without(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != key}


# ---------------------------------------------------------------- and back


def read_record(folder: Path) -> Report:
    """The study's report as its record has it."""
    path = folder / RUNS
    with explained(path):
        text = path.read_text(encoding="utf-8")
    try:
        study, *lines = [json.loads(line) for line in text.splitlines()]
        return _report(study, [line for line in lines if line["kind"] == "run"])
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RunError(
            f"{path} is not a study's record ({type(error).__name__}: {error}); write it anew from the study's folder"
        ) from None


def _report(study: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> Report:
    rows = tuple(Row(row["key"], row["title"], tuple(row["changes"]), facts=row["facts"]) for row in study["rows"])
    where = {(row["key"], seed): row["cells"][str(seed)] for seed in study["seeds"] for row in study["rows"]}
    outcomes = {run["name"]: CellOutcome(run["name"], run["result"], run["failure"]) for run in runs}
    lengths = {run["name"]: run["updates"] for run in runs}
    grid = Grid(
        rows,
        tuple(study["seeds"]),
        where,
        methods={row["key"]: row["method"] for row in study["rows"]},
        planned={name: lengths.get(name, study["updates"]) for name in where.values()},
    )
    tables: list[Table] = []
    for asked in study["tables"]:
        name, title, reference = asked["name"], asked["title"], asked["reference"]
        if asked.get("whole"):
            tables.append(Table.from_dict(asked["whole"]))
        elif reference:  # it follows the table that it is about
            tables.append(differences_table(name, title, tables[-1], reference))
        else:
            shown = [row for row in rows if row.key in asked["rows"]]
            bounds = frozenset(asked["over_budget"])
            tables.append(results_table(name, title, grid, outcomes, shown, over_budget=bounds))
    return Report(
        kind=study["study"],
        title=study["title"],
        recipe=study["recipe"],
        command=study["command"],
        updates=study["updates"],
        grid=grid,
        outcomes=outcomes,
        tables=tuple(tables),
        notes=tuple(study["notes"]),
        tuning=study["tuning"],
        axes=study["axes"],
    )


def _read_toml(path: Path) -> dict[str, Any]:
    with explained(path):
        return tomllib.loads(path.read_text(encoding="utf-8"))


def main(arguments: Sequence[str]) -> int:
    if len(arguments) not in (1, 2):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        if len(arguments) == 2:
            write_record(Path(arguments[0]), Path(arguments[1]))
        else:
            write_table(Path(arguments[0]))
    except Cos2pError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
