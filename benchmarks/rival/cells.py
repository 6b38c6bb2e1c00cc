"""Whole tasks, each in a device's own fresh training process; a cell of a JSON file for each that was done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.fullsize.tasks import announce, measure
from benchmarks.fullsize.vision import synthetic
from benchmarks.rival.forms import EPOCHS, FORMS, RIVAL
from benchmarks.rival.plans import Tier, order_at, positions, tiers
from cos2p.models.layout import Weights
from cos2p.runtime.run_setup import RunSetup, build_run_setup, first_weights
from cos2p.server.server import Server


@dataclass(frozen=True)
class Wanted:
    """A task to be measured."""

    tier: Tier
    form: str
    """Of Co-S²P, or the rival's name."""
    trains_masks: bool
    start: int

    @property
    def method(self) -> str:
        return RIVAL if self.form == RIVAL else "cos2p"

    @property
    def changes(self) -> tuple[str, ...]:
        if self.form == RIVAL:
            return ()
        return FORMS[self.form].changes(self.trains_masks)

    @property
    def key(self) -> str:
        """Tasks of two forms that are the same are measured once."""
        return " ".join((self.tier.title, self.method, f"from block {self.start}", *self.changes))


@dataclass(frozen=True)
class Cell:
    """What a task took."""

    cpu_seconds: float
    peak: int
    predicted: int
    """The ledger's word for the peak of this very task."""
    down: int
    up: int
    failure: str = ""


class Cells:
    """Tasks that were measured, by what they were, of devices with so many samples."""

    def __init__(self, path: Path, samples: int) -> None:
        self.path, self.samples = path, samples
        stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self.known = {key: Cell(**values) for key, values in stored.items()}

    def add(self, wanted: Wanted, cell: Cell) -> None:
        self.known[self._key(wanted)] = cell
        self.path.parent.mkdir(parents=True, exist_ok=True)
        stored = {key: asdict(cell) for key, cell in sorted(self.known.items())}
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
        temporary.replace(self.path)

    def __getitem__(self, wanted: Wanted) -> Cell | None:
        return self.known.get(self._key(wanted))

    def _key(self, wanted: Wanted) -> str:
        return f"{self.samples} samples, {wanted.key}"


def measured_starts(tier: Tier, trains_masks: bool) -> tuple[int, ...]:
    """The bottom, where nothing is frozen and the embeddings train, and the middle of all other positions.

    Above the bottom a position costs one frozen block more than the one below it, so the middle stands for all. Masks
    train as long at the bottom as anywhere: there only the middle is measured.
    """
    above = [start for start in positions(tier, "paper") if start > 0]
    middle = above[len(above) // 2]
    return (middle,) if trains_masks else (0, middle)


def wanted(recipe: str, forms: list[str]) -> Iterator[Wanted]:
    for tier in tiers(recipe):
        yield Wanted(tier, RIVAL, False, 0)
        for form in forms:
            for trains_masks in (False, True):
                for start in measured_starts(tier, trains_masks):
                    yield Wanted(tier, form, trains_masks, start)


def run(cells: Cells, recipe: str, forms: list[str], folder: Path) -> None:
    """Measure what is not known yet."""
    run_setups = dict[tuple[str, ...], RunSetup]()
    weights: Weights | None = None
    for item in wanted(recipe, forms):
        if cells[item] is not None:
            continue
        announce(item.key)
        known = (item.method, *item.changes)
        if known not in run_setups:
            run_setups[known] = build_run_setup(
                synthetic(recipe, known[0], folder, cells.samples, EPOCHS, item.changes)
            )
        run_setup = run_setups[known]
        weights = weights or first_weights(run_setup.recipe, run_setup.config)
        cells.add(item, _measure(run_setup, weights, item))


def _measure(run_setup: RunSetup, weights: Weights, item: Wanted) -> Cell:
    server = Server(run_setup.context, run_setup.method(), weights)
    order = order_at(server, item.tier.clients[0], item.start)
    found = measure(item.tier.recipe, run_setup, server, order, devices=1)
    return Cell(found.cpu_seconds, found.peak, found.predicted, found.down, found.up, found.failure)
