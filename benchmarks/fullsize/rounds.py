"""A whole round of the paper's vision runs: every device's task in a process of its own, merged by the real server.

Noise for images, four a device unless `--batch` says otherwise, and one epoch of each phase: weights and bytes are what
they are in the run, activations and seconds are in proportion to the samples. The server's timer fires when all have
answered, so that the round has every device; in the run itself it would not wait for the slowest.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

from rich.box import MARKDOWN
from rich.table import Table

from benchmarks.fullsize.tasks import Measured, announce, first_orders, measure
from benchmarks.fullsize.vision import synthetic
from cos2p.errors import Cos2pError
from cos2p.fleet.server.driver import read_update
from cos2p.runtime.run_setup import build_run_setup, first_weights
from cos2p.server.protocol import Effect, StartTimer, TimerFired
from cos2p.tracking.event_kinds import Aggregated, Refused

FORMS = {
    "cos2p": ("cos2p", ()),
    "cos2p, masks known": ("cos2p", ("method.masks.epochs=0",)),
    "fedrolex": ("fedrolex", ()),
}
"""The first rounds, in which masks train; all later ones; and the rival, whose rounds are all alike."""
RIVAL = "fedrolex"
SAMPLES = 4
"""Of each device, all in one batch."""


@dataclass(frozen=True)
class Round:
    """A line of the record: what each device took, and what became of the updates."""

    recipe: str
    form: str
    tasks: tuple[Measured, ...]
    merged: int
    """Updates in the new version."""
    n_star: int
    server_seconds: float
    """Of the processor, to let all updates in, merge them and close the round."""

    @property
    def key(self) -> tuple[str, str, int]:
        return self.recipe, self.form, max(task.batch for task in self.tasks)


class Rounds:
    """A JSON line for each round; what is in it is not played again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.known = [_round(json.loads(line)) for line in lines]

    def has(self, *key: object) -> bool:
        return any(entry.key == key for entry in self.known)

    def add(self, entry: Round) -> None:
        self.known.append(entry)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(entry)) + "\n")


def _round(values: dict[str, object]) -> Round:
    tasks: list[dict[str, object]] = values["tasks"]  # type: ignore[assignment]
    measured = tuple(Measured(**{**task, "window": tuple(task["window"])}) for task in tasks)  # type: ignore[arg-type]
    return Round(**{**values, "tasks": measured})  # type: ignore[arg-type]


def play(name: str, form: str, folder: Path, batch: int) -> Round:
    """One round, device after device. An update that the server refuses ends it: then there is no round to show."""
    method, changes = FORMS[form]
    recipe = synthetic(name, method, folder, batch, epochs=1, changes=changes)
    run_setup = build_run_setup(recipe)
    server, orders = first_orders(run_setup, first_weights(recipe, run_setup.config))
    effects: list[Effect] = []
    busy = 0.0

    def deliver(client: str, update: Path) -> None:
        nonlocal busy
        began = time.process_time()
        effects.extend(server.receive(client, read_update(update)))
        busy += time.process_time() - began

    tasks = []
    for order in list(orders):
        announce(f"{name} {form} {order.client}: R = {run_setup.context.members[order.client].rate:g}")
        tasks.append(measure(name, run_setup, server, order, 1, deliver=partial(deliver, order.client)))
    began = time.process_time()
    for timer in [effect for effect in effects if isinstance(effect, StartTimer)]:
        effects.extend(server.handle(TimerFired(timer.timer)))
    busy += time.process_time() - began
    refused = [f"{effect.client}: {effect.reason}" for effect in effects if isinstance(effect, Refused)]
    closed = [effect for effect in effects if isinstance(effect, Aggregated)]
    if refused or len(closed) != 1:
        raise Cos2pError(f"{name} {form}: {len(closed)} rounds closed; refused: {'; '.join(refused) or 'none'}")
    return Round(name, form, tuple(tasks), closed[0].updates, closed[0].n_star, round(busy, 2))


def run(rounds: Rounds, recipes: Iterable[str], batch: int) -> None:
    for name in recipes:
        for form in FORMS:
            if not rounds.has(name, form, batch):
                with tempfile.TemporaryDirectory() as folder:
                    rounds.add(play(name, form, Path(folder), batch))


def tables(rounds: Rounds) -> Iterator[Table]:
    for name in dict.fromkeys(entry.recipe for entry in rounds.known):
        yield table(name, [entry for entry in rounds.known if entry.recipe == name])


def table(name: str, entries: list[Round]) -> Table:
    """By kind of device; peak: the mean of its devices. Last the fleet's sums, and what they are of the rival's."""
    columns = ("form", "device", "n", "R", "peak MB", "meas/pred", "CPU s", "down MB", "up MB")
    shown = Table(*columns, box=MARKDOWN, title=name, title_justify="left")
    for entry in entries:
        for (rate, tier), of_kind in groupby(sorted(entry.tasks, key=_kind), key=_kind):
            tasks = list(of_kind)
            peak, seconds, down, up = (value / len(tasks) for value in sums(tasks))
            least, most = (extreme(task.peak / task.predicted for task in tasks) for extreme in (min, max))
            shown.add_row(
                *(entry.form, tier, str(len(tasks)), f"{rate:g}", f"{peak / 1e6:.0f}", f"{least:.2f} to {most:.2f}"),
                *(f"{seconds:.1f}", f"{down / 1e6:.1f}", f"{up / 1e6:.1f}"),
            )
        peak, seconds, down, up = sums(entry.tasks)
        shown.add_row(
            *(entry.form, f"fleet, N* = {entry.n_star}", str(entry.merged), "", f"{peak / 1e6:.0f}", ""),
            *(f"{seconds:.0f}", f"{down / 1e6:.0f}", f"{up / 1e6:.0f}"),
        )
    rivals = [entry for entry in entries if entry.form == RIVAL]
    for entry in entries:
        if rivals and entry.form != RIVAL:
            shares = [
                f"{ours / theirs - 1:+.0%}"
                for ours, theirs in zip(sums(entry.tasks), sums(rivals[0].tasks), strict=True)
            ]
            shown.add_row(f"{entry.form} / {RIVAL}", "fleet", "", "", shares[0], "", *shares[1:])
    return shown


def sums(tasks: Iterable[Measured]) -> tuple[float, float, float, float]:
    """Peaks, processor seconds, bytes down and up, over devices."""
    held = list(tasks)
    return (
        float(sum(task.peak for task in held)),
        sum(task.cpu_seconds for task in held),
        float(sum(task.down for task in held)),
        float(sum(task.up for task in held)),
    )


def _kind(task: Measured) -> tuple[float, str]:
    return task.rate, task.tier
