"""One run from a recipe to a folder of results, resumable at any moment.

DIR/recipe.toml            the recipe as used, every default written out
DIR/events.jsonl           what happened, in virtual time
DIR/checkpoint.safetensors the last consistent state
DIR/result.json            the figures, when the run is over
DIR/weights.safetensors    the final weights with the whole bank of exits
DIR/model/                 the final model as a Hugging Face folder
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cos2p.data import Bundle, DataConfig
from cos2p.data.own import bundle_name, checked, handed_over, pack_bundle
from cos2p.errors import RunError, TrainingError
from cos2p.interrupts import on_interrupt
from cos2p.recipe import Recipe
from cos2p.runtime.results import check_same_recipe, recipe_toml, run_facts, write_results
from cos2p.runtime.simulation import NOBODY_LEFT, Listener, Simulation
from cos2p.runtime.workers import Workers
from cos2p.runtime.world import build_world
from cos2p.tracking.checkpoint import Checkpoint
from cos2p.tracking.events import EventLog
from cos2p.tracking.files import prepare_folder, write_atomic


class Interrupted(RunError):
    """The user stopped the run; it can be resumed."""

    exit_code = 130


def run(
    recipe: Recipe | str | Path,
    out: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    listener: Listener | None = None,
    data: Bundle | Callable[[DataConfig, int], Bundle] | None = None,
) -> dict[str, Any]:
    """Simulate the recipe into the folder `out` and return its figures (those of `result.json`).

    `resume` goes on from the folder's checkpoint, or returns the figures if the run was over. `listener` is told of
    every event as it is logged: `listener(kind, fields)`. `data` takes the place of the recipe's data: a bundle, or a
    function of the `[data]` table and the seed that gives one. It is written into the folder, where every worker, and
    a run that is resumed by its recipe, finds it.
    """
    recipe = recipe if isinstance(recipe, Recipe) else Recipe.load(recipe)
    folder = Path(out)
    own: tuple[Path, bytes] | None = None
    if data is not None:
        content = pack_bundle(checked(data(recipe.data, recipe.seed) if callable(data) else data, "data"))
        own = folder / bundle_name(content), content
        recipe = recipe.model_copy(update={"data": handed_over(recipe.data, own[0])})
    if resume and (folder / "result.json").exists():
        check_same_recipe(recipe, folder)
        return dict(json.loads((folder / "result.json").read_text(encoding="utf-8")))
    prepare_folder(folder, overwrite=overwrite, resume=resume)
    checkpoint = None
    if resume and (folder / "recipe.toml").exists():
        check_same_recipe(recipe, folder)
        if (folder / "checkpoint.safetensors").exists():
            checkpoint = Checkpoint.read(folder / "checkpoint.safetensors")
    if own is not None:
        write_atomic(*own)
    write_atomic(folder / "recipe.toml", recipe_toml(recipe).encode())
    return _simulate(recipe, folder, checkpoint, listener or (lambda kind, fields: None))


def _simulate(recipe: Recipe, folder: Path, checkpoint: Checkpoint | None, listener: Listener) -> dict[str, Any]:
    started = time.monotonic()
    world = build_world(recipe)
    for note in world.bundle.notes:
        logging.getLogger(__name__).warning(note)
    log = EventLog.resume(folder / "events.jsonl", checkpoint.values["log"] if checkpoint else 0)
    workers = Workers(recipe)
    benched: list[str] = []
    """Why devices get no more tasks."""

    def tell(kind: str, fields: Mapping[str, Any]) -> None:
        if kind == "benched":
            benched.append(f"{fields['client']}: {fields['reason']}")
        log.write(kind, **fields)
        listener(kind, fields)

    try:
        simulation = Simulation(world, workers, tell)
        if checkpoint is None:
            tell("started", {"t": 0.0, **run_facts(recipe, world.house)})
            simulation.begin()
        else:
            simulation.restore(checkpoint.values["simulation"], checkpoint)
            done = {"version": simulation.server.coordinator.version, "merged": simulation.server.coordinator.merged}
            listener("resumed", {"t": simulation.now, **done, **run_facts(recipe, world.house)})
        saver = _Saver(simulation, log, folder, recipe.run.checkpoint_seconds)
        with on_interrupt(_asks_to_stop(simulation)):
            simulation.run(saver.after_event)
        if simulation.finished is None:
            saver.save()
            raise Interrupted(f"stopped at virtual second {simulation.now:.0f}; go on with --resume")
        if simulation.finished == NOBODY_LEFT and benched:
            raise TrainingError(f"no device is able to go on; {benched[-1]}")
        return write_results(
            recipe, simulation.server, simulation.scores, simulation.finished, folder, time.monotonic() - started
        )
    finally:
        workers.close()
        log.close()


class _Saver:
    """Checkpoints between two events, not more often than the recipe asks."""

    def __init__(self, simulation: Simulation, log: EventLog, folder: Path, seconds: float) -> None:
        self.simulation, self.log, self.path, self.seconds = simulation, log, folder / "checkpoint.safetensors", seconds
        self._last = time.monotonic()
        self._version = simulation.server.versions.current

    def after_event(self) -> None:
        version = self.simulation.server.versions.current
        if version != self._version and time.monotonic() - self._last >= self.seconds:
            self._version = version
            self.save()

    def save(self) -> None:
        state = self.simulation.save()
        offset = self.log.offset()
        Checkpoint({"simulation": state.values, "log": offset}, state.groups, state.blobs).write(self.path)
        self._last = time.monotonic()


def _asks_to_stop(simulation: Simulation) -> Callable[[], None]:
    """The first Ctrl-C stops between two events with a checkpoint; a second one stops at once."""

    def ask() -> None:
        if simulation.stop_requested:
            raise KeyboardInterrupt
        simulation.stop_requested = True

    return ask
