"""A study's grid: rows (what is compared) × seeds. Every cell is one complete recipe, one run folder, one outcome."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Protocol

from cos2p.errors import ConfigError, RecipeError
from cos2p.methods import method_class
from cos2p.recipe import Recipe, recipe_values
from cos2p.runtime.run_setup import build_run_setup
from cos2p.runtime.settled import pooling_is_open

NAME_LENGTH = 100
"""Longest name of a cell's folder; file systems allow 255 bytes."""


@dataclass(frozen=True)
class Row:
    key: str
    title: str
    changes: tuple[str, ...] = ()
    """`path.to.field=value`, after the study's own changes."""
    method: str | None = None
    """Another method than the recipe's."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """The table's words on the row besides its figures: the ticks of an ablation, the axes of a sweep."""
    folder: str = ""
    """Beginning of its cells' names; empty: the key. A row whose settings were searched has them in it, so that a
    wider search in the same folder does not meet the runs of an earlier choice."""


@dataclass(frozen=True)
class Cell:
    """One run: a row with one seed."""

    name: str
    """Name of its folder, unique in the study."""
    row: str
    seed: int
    recipe: Recipe

    @property
    def digest(self) -> str:
        return recipe_digest(self.recipe)


@dataclass(frozen=True)
class Base:
    """The common part of all cells: the recipe, how it is changed, and the measure that makes them comparable."""

    recipe: str
    """A shipped name or a TOML file."""
    changes: tuple[str, ...] = ()
    """`path.to.field=value` for all rows, `method:path.to.field=value` for those of one method."""
    updates: int | None = None
    """Client updates of every run; None: the recipe's `schedule.updates`."""

    def checked(self) -> Base:
        """The same with its number of updates filled in.

        A round is one update to an asynchronous method and one for each device to a synchronous one: a recipe that
        ends after rounds is measured by as many updates of each device.
        """
        for name, change in map(_split, self.changes):
            if name:
                method_class(name)
            if change.partition("=")[0].strip() == "schedule.rounds":
                raise ConfigError(
                    f"--set {change}: runs of a study end after a number of updates; give it by --updates"
                )
        recipe = self.load(Row("", ""))
        updates = self.updates or recipe.schedule.updates
        if updates is None:
            rounds = recipe.schedule.rounds or 0
            updates = rounds * sum(group.count for group in recipe.fleet.devices)
            logging.getLogger(__name__).warning(
                f"{self.recipe} ends after {rounds} rounds: every run gets {updates} updates, {rounds} of each device"
            )
        return Base(self.recipe, (*self._settled(), *self.changes), updates)

    def _settled(self) -> tuple[str, ...]:
        """A pooling that nobody named is chosen once, for all rows and seeds."""
        recipe = self.load(Row("", ""))
        if not pooling_is_open(recipe):
            return ()
        run_setup = build_run_setup(recipe)
        for note in run_setup.notes:
            logging.getLogger(__name__).warning(note)
        return (f"model.pooling={run_setup.recipe.model.pooling or ''}",)

    def load(self, row: Row, *more: str) -> Recipe:
        """The recipe of a row. Order of changes: the study's, the measure, the row's, `more`; the last one wins."""
        measure = () if self.updates is None else ("schedule.rounds=", f"schedule.updates={self.updates}")
        own = [change for name, change in map(_split, self.changes) if name in ("", self.method(row))]
        changes = [*own, *measure, *row.changes, *more]
        try:
            return Recipe.load(self.recipe, changes, row.method)
        except RecipeError as error:
            raise RecipeError(f"{row.key}: {error}" if row.key else str(error)) from None

    def method(self, row: Row) -> str:
        return str(row.method or recipe_values(self.recipe).get("method", {}).get("name", "cos2p"))

    def refuse_strangers(self, rows: Sequence[Row]) -> None:
        """A change for a method that no row has would be lost without a word."""
        for change, (name, _) in zip(self.changes, map(_split, self.changes), strict=True):
            if name:
                refuse_stranger(f"--set {change}", name, [self.method(row) for row in rows])


def refuse_stranger(option: str, method: str, compared: Sequence[str]) -> None:
    """An option for one method is of use only if the study has that method."""
    if method in compared:
        return
    method_class(method)  # an unknown name is refused with the one it looks like
    close = get_close_matches(method, compared, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    rows = ", ".join(dict.fromkeys(compared))
    raise ConfigError(f"{option}: no run of this study is of the method {method!r}; {hint}its methods: {rows}")


def _split(change: str) -> tuple[str, str]:
    """The method a change is meant for, empty for all, and the change.

    >>> _split("fedavg:method.weights=samples"), _split("data.path=c:/images")
    (('fedavg', 'method.weights=samples'), ('', 'data.path=c:/images'))
    """
    name, colon, rest = change.partition(":")
    return (name.strip(), rest) if colon and "=" not in name else ("", change)


@dataclass(frozen=True)
class Grid:
    """Which cell stands where: all that tables and records need to know of the runs' recipes."""

    rows: tuple[Row, ...]
    seeds: tuple[int, ...]
    where: Mapping[tuple[str, int], str]
    """The cell of (row, seed), in the order in which they run: all rows of the first seed first, so that a first table
    is soon complete. Rows that come to the same recipe share their runs."""
    methods: Mapping[str, str]
    """Each row's method."""
    planned: Mapping[str, int]
    """Client updates of each cell."""

    def name(self, row: str, seed: int) -> str:
        return self.where[row, seed]

    @property
    def places(self) -> dict[str, tuple[str, int]]:
        """Every cell's name with the first (row, seed) that it stands for."""
        found: dict[str, tuple[str, int]] = {}
        for place, name in self.where.items():
            found.setdefault(name, place)
        return found


@dataclass(frozen=True)
class RunnableGrid(Grid):
    cells: tuple[Cell, ...]


def make_grid(base: Base, rows: Sequence[Row], seeds: Sequence[int]) -> RunnableGrid:
    """Every row with every seed; wrong fields are reported before anything runs."""
    for what, given in (("row", [row.key for row in rows]), ("seed", [str(seed) for seed in seeds])):
        twice = sorted({entry for entry in given if given.count(entry) > 1})
        if twice:
            raise ConfigError(f"{what} {', '.join(twice)} was given twice; name each once")
    if not rows or not seeds:
        raise ConfigError("a study needs at least one row and one seed")
    base.refuse_strangers(rows)
    cells: dict[str, Cell] = {}
    by_digest: dict[str, str] = {}
    where = {}
    methods = {}
    for seed in seeds:
        for row in rows:
            recipe = base.load(row, f"seed={seed}")
            digest = recipe_digest(recipe)
            if digest not in by_digest:
                name = _free_name(cell_name(row.folder or row.key, seed), cells)
                cells[name] = Cell(name, row.key, seed, recipe)
                by_digest[digest] = name
            where[row.key, seed] = by_digest[digest]
            methods[row.key] = str(recipe.method["name"])
    planned = {name: cell.recipe.schedule.updates or 0 for name, cell in cells.items()}
    return RunnableGrid(tuple(rows), tuple(seeds), where, methods, planned, tuple(cells.values()))


def recipe_digest(recipe: Recipe) -> str:
    """Equal for recipes that give the same run: names, descriptions and the number of workers do not count."""
    values = recipe.model_dump(mode="json", exclude={"run", "name", "description"})
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=12).hexdigest()


def cell_name(key: str, seed: int) -> str:
    """A folder name that every file system and every address bar can take.

    >>> cell_name("mu=0.5, t_clk=10", 3)
    'mu=0.5_t_clk=10-s3'
    """
    plain = re.sub(r"[^A-Za-z0-9.=+-]+", "_", key).lstrip(".")[:NAME_LENGTH] or "row"
    return f"{plain}-s{seed}"


def _free_name(name: str, taken: Mapping[str, object]) -> str:
    """Two keys can come to the same plain name; the second one gets a number."""
    number, free = 2, name
    while free in taken:
        free, number = f"{name}-{number}", number + 1
    return free


# ---------------------------------------------------------------- outcomes


@dataclass(frozen=True)
class CellOutcome:
    cell: str
    result: Mapping[str, Any] | None = None
    failure: str = ""
    exit_code: int = 0
    """The failure's, as `cos2p run` would end with it."""
    kept: bool = False
    """It was there already, from an earlier start of the study."""
    seconds: float = 0.0
    """Wall seconds it took just now."""

    @property
    def ok(self) -> bool:
        return self.result is not None


CellOutcomes = Mapping[str, CellOutcome]
"""By the cell's name; cells that have not run yet are missing."""


class Execute(Protocol):
    """Runs cells. `after` gets all outcomes so far, whenever there is a new one."""

    def __call__(
        self, cells: Sequence[Cell], after: Callable[[CellOutcomes], None] | None = None, later: int = 0
    ) -> CellOutcomes:
        """`later` is how many further cells the caller will ask for, for the estimate of the time."""
