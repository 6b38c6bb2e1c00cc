"""`sweep`: one setting, or two against each other, over several values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from cos2p.errors import ConfigError
from cos2p.studies.grid import CellOutcomes, Row, RunnableGrid
from cos2p.studies.report import StudyPlan
from cos2p.studies.tables import Table, results_table

SHORT_NAMES = {
    "mu": "schedule.mu",
    "t_clk": "schedule.t_clk",
    "lambda1": "method.masks.lambda1",
    "lambda2": "method.exits.lambda2",
    "ratio": "method.window.ratio",
    "lr": "training.lr",
}
"""The axes of the paper's figures, and the learning rate. Any other field is named by its full path."""


@dataclass(frozen=True)
class Axis:
    name: str
    """As it was given, for tables and pictures."""
    path: str
    values: tuple[str, ...]


def parse_axes(given: Sequence[str]) -> tuple[Axis, ...]:
    """`name=value,value`, several of them in one text or in several.

    >>> [(axis.path, axis.values) for axis in parse_axes(["mu=0.125,1,t_clk=0,10"])]
    [('schedule.mu', ('0.125', '1')), ('schedule.t_clk', ('0', '10'))]
    """
    values: dict[str, list[str]] = {}
    for text in given:
        name = ""
        for part in text.split(","):
            left, equals, right = part.partition("=")
            if equals:
                name = left.strip()
                if not name or name in values:
                    raise ConfigError(
                        f"--over {text!r}: {'an axis has no name' if not name else name + ' is there twice'}"
                    )
                values[name] = []
            value = (right if equals else left).strip()
            if not name or not value:
                raise ConfigError(f"cannot read --over {text!r}; write name=value,value")
            values[name].append(value)
    if not values:
        raise ConfigError(f"give at least one axis by --over name=value,value; short names: {', '.join(SHORT_NAMES)}")
    return tuple(_axis(name, tuple(entries)) for name, entries in values.items())


def _axis(name: str, values: tuple[str, ...]) -> Axis:
    path = SHORT_NAMES.get(name, name)
    if path == "seed":
        raise ConfigError("--over seed=...: seeds are given by --seeds, and averaged over")
    if "." not in path:
        raise ConfigError(
            f"--over {name}=...: no such axis; known: {', '.join(SHORT_NAMES)}, or the full path of a field "
            "(`cos2p recipes show` lists them)"
        )
    if len(set(values)) < len(values):
        raise ConfigError(f"--over {name}={','.join(values)}: a value is there twice")
    return Axis(name, path, values)


def sweep_rows(axes: Sequence[Axis], method: str | None = None) -> list[Row]:
    if len({axis.path for axis in axes}) < len(axes):
        raise ConfigError(f"two axes set the same field: {', '.join(f'{a.name} ({a.path})' for a in axes)}")
    rows = []
    for values in product(*(axis.values for axis in axes)):
        pairs = list(zip(axes, values, strict=True))
        rows.append(
            Row(
                key=",".join(f"{axis.name}={value}" for axis, value in pairs),
                title=", ".join(f"{axis.name} {value}" for axis, value in pairs),
                changes=tuple(f"{axis.path}={value}" for axis, value in pairs),
                method=method,
                facts={axis.name: value for axis, value in pairs},
            )
        )
    return rows


def sweep(plan: StudyPlan, axes: Sequence[Axis], method: str | None = None) -> StudyPlan:
    names = " × ".join(axis.name for axis in axes)

    def tables(grid: RunnableGrid, outcomes: CellOutcomes) -> list[Table]:
        return [results_table("results", f"Over {names}", grid, outcomes)]

    described = {axis.name: {"path": axis.path, "values": list(axis.values)} for axis in axes}
    rows = tuple(sweep_rows(axes, method))
    return replace(plan, kind="sweep", title=names, rows=rows, tables=tables, axes=described)
