"""How a run's accuracy rose with what it spent; and `compare --target`: what each method has spent when its model first
has an accuracy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cos2p.errors import ConfigError
from cos2p.studies.columns import COLUMNS, TARGET_PREFIX, TOP1, Column
from cos2p.studies.grid import CellOutcomes, Grid, refuse_stranger
from cos2p.studies.tables import Table, results_table
from cos2p.tracking.event_kinds import Aggregated, Arrived, Dispatched, Evaluated, Finished
from cos2p.tracking.events import read_events
from cos2p.tracking.figure_parts import deepest

WORK = ("prefix", "masks", "training")
"""The seconds of a task in which the device's processor is busy; the others are its network's."""


@dataclass(frozen=True)
class Spent:
    """The fleet's expenses until a version of the model was made."""

    updates: int = 0
    virtual_seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    processor_seconds: float | None = None
    """The sum over all devices and the tasks that were done by then; a real fleet's log does not have them."""


@dataclass(frozen=True)
class Point:
    spent: Spent
    top1: float
    """The server's model at its deepest exit; before the run's end on `schedule.evaluate_samples` test samples."""

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self.spent), "top1": self.top1}


Curve = Sequence[Point]


def read_curve(run: Path) -> Curve:
    """In the order of the versions. Scores arrive later than their version, so they are put where it was made."""
    versions = {0: Spent()}
    scores: dict[int, float] = {}
    work: dict[str, float | None] = {}
    updates = up = down = 0
    seconds: float | None = 0.0
    for event in read_events(run / "events.jsonl"):
        if isinstance(event, Dispatched):
            down += event.bytes
            work[event.task] = None if event.seconds is None else sum(event.seconds.get(part, 0.0) for part in WORK)
        elif isinstance(event, Arrived):
            up += event.bytes
            own = work.pop(event.task, None)
            seconds = None if seconds is None or own is None else seconds + own
        elif isinstance(event, Aggregated):
            updates += event.updates
            versions[event.version] = Spent(updates, event.t, up, down, seconds)
        elif isinstance(event, Evaluated | Finished) and "top1" in deepest(event.test):
            scores[event.version] = deepest(event.test)["top1"]
    return [Point(versions[version], scores[version]) for version in sorted(scores) if version in versions]


def spent_until(curve: Curve, top1: float) -> Spent | None:
    """The expenses at the first evaluation with this accuracy; None if there was none."""
    return next((point.spent for point in curve if point.top1 >= top1), None)


# ---------------------------------------------------------------- accuracies asked for

ReadCurve = Callable[[str], Curve]
"""The curve of a finished cell, by its name."""

REACHED = "reached"
TARGET_COLUMNS = (
    Column(REACHED, "runs that reach it", "%", 100.0, 0),
    Column("updates", "updates", "", 1.0, 0),
    *(replace(column, better="") for column in COLUMNS if column.key in ("virtual_seconds", "bytes_up", "bytes_down")),
    Column("processor_seconds", "devices' processor time", "min", 1 / 60, 1),
)
"""Nothing is bold: a row of which one run in three got there is not the quickest."""


@dataclass(frozen=True)
class Target:
    """An accuracy, or a share of that which a method ends with."""

    share: float
    method: str = ""

    def top1(self, results: Table) -> float | None:
        """The accuracy; None as long as no run of the method is done."""
        if not self.method:
            return self.share
        mean = results.line(self.method).figures[TOP1.key].mean
        return None if mean is None else self.share * mean

    def words(self, results: Table) -> str:
        if not self.method:
            return "the accuracy asked for"
        part = "" if self.share == 1 else f"{100 * self.share:g} % of "
        return f"{part}what {results.line(self.method).title} ends with"


def parse_target(text: str) -> Target:
    """
    >>> parse_target("0.55"), parse_target("fedrolex"), parse_target("0.9*fedavg")
    (Target(share=0.55, method=''), Target(share=1.0, method='fedrolex'), Target(share=0.9, method='fedavg'))
    """
    factor, star, method = text.rpartition("*")
    try:
        share = float(factor) if star else float(method)
        method = method.strip() if star else ""
    except ValueError:
        share, method = (0.0 if star else 1.0), method.strip()
    if not 0 < share <= 1 or not text.strip() or (star and not method):
        raise ConfigError(
            f"cannot read --target {text!r}; write an accuracy such as 0.55, a method for what it ends with, "
            "or 0.9*fedavg for a share of it"
        )
    return Target(share, method)


def check_targets(targets: Sequence[Target], methods: Sequence[str]) -> None:
    for target in targets:
        if target.method:
            refuse_stranger(f"--target {target.method}", target.method, methods)


def target_tables(
    targets: Sequence[Target], results: Table, grid: Grid, outcomes: CellOutcomes, read: ReadCurve
) -> list[Table]:
    """A table for each target that is known already. Rows are those of `results`."""
    curves = {name: read(name) for name, outcome in outcomes.items() if outcome.ok and name in grid.places}
    found = []
    for number, target in enumerate(targets, 1):
        top1 = target.top1(results)
        if top1 is not None:
            found.append(
                _table(f"{TARGET_PREFIX}{number}", target.words(results), top1, results, grid, outcomes, curves)
            )
    return found


def _table(
    name: str, words: str, top1: float, results: Table, grid: Grid, outcomes: CellOutcomes, curves: Mapping[str, Curve]
) -> Table:
    spent = {
        cell: replace(outcome, result=_figures(curves[cell], top1)) if cell in curves else outcome
        for cell, outcome in outcomes.items()
    }
    bounds = frozenset(line.key for line in results.lines if line.over_budget)
    title = f"Spent until {TOP1.write(top1)} % ({words})"
    table = results_table(name, title, grid, spent, columns=TARGET_COLUMNS, over_budget=bounds)
    note = (
        f"At the first evaluation with a server's top-1 of {TOP1.write(top1)} % or more; means are of the runs that "
        "have one. While a run goes on it is evaluated every few rounds, on part of the test set."
    )
    return replace(table, notes=(*table.notes, note))


def _figures(curve: Curve, top1: float) -> dict[str, float | None]:
    spent = spent_until(curve, top1)
    return {REACHED: 0.0} if spent is None else {REACHED: 1.0, **asdict(spent)}
