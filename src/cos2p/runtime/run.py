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
import platform
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import safetensors.torch
import tomli_w
import torch

import cos2p
from cos2p.errors import RunError, TrainingError
from cos2p.methods import method_class
from cos2p.models.hub import save_pretrained
from cos2p.recipe import Recipe
from cos2p.runtime.simulation import NOBODY_LEFT, Listener, Simulation
from cos2p.runtime.workers import Workers
from cos2p.runtime.world import World, build_world
from cos2p.tracking.checkpoint import Checkpoint
from cos2p.tracking.events import EventLog
from cos2p.tracking.files import prepare_folder, write_atomic

WALL_CLOCK_FIELDS = ("wall_seconds", "versions")
"""Fields of result.json that may differ between two runs of the same recipe."""


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
) -> dict[str, Any]:
    """Simulate the recipe into the folder `out` and return its figures (those of `result.json`).

    `resume` goes on from the folder's checkpoint, or returns the figures if the run was over. `listener` is told of
    every event as it is logged: `listener(kind, fields)`.
    """
    recipe = recipe if isinstance(recipe, Recipe) else Recipe.load(recipe)
    folder = Path(out)
    if resume and (folder / "result.json").exists():
        _same_recipe(recipe, folder)
        return dict(json.loads((folder / "result.json").read_text(encoding="utf-8")))
    prepare_folder(folder, overwrite=overwrite, resume=resume)
    checkpoint = None
    if resume and (folder / "recipe.toml").exists():
        _same_recipe(recipe, folder)
        if (folder / "checkpoint.safetensors").exists():
            checkpoint = Checkpoint.read(folder / "checkpoint.safetensors")
    write_atomic(folder / "recipe.toml", recipe_toml(recipe).encode())
    return _simulate(recipe, folder, checkpoint, listener or (lambda kind, fields: None))


def _simulate(recipe: Recipe, folder: Path, checkpoint: Checkpoint | None, listener: Listener) -> dict[str, Any]:
    started = time.monotonic()
    world = build_world(recipe)
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
            tell("started", {"t": 0.0, **_facts(world)})
            simulation.begin()
        else:
            simulation.restore(checkpoint.values["simulation"], checkpoint)
            done = {"version": simulation.server.coordinator.version, "merged": simulation.server.coordinator.merged}
            listener("resumed", {"t": simulation.now, **done, **_facts(world)})
        saver = _Saver(simulation, log, folder, recipe.run.checkpoint_seconds)
        with _stop_on_interrupt(simulation):
            simulation.run(saver.after_event)
        if simulation.finished is None:
            saver.save()
            raise Interrupted(f"stopped at virtual second {simulation.now:.0f}; go on with --resume")
        if simulation.finished == NOBODY_LEFT and benched:
            raise TrainingError(f"no device is able to go on; {benched[-1]}")
        return _write_results(world, simulation, folder, time.monotonic() - started)
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


@contextmanager
def _stop_on_interrupt(simulation: Simulation) -> Iterator[None]:
    """The first Ctrl-C stops between two events with a checkpoint; a second one stops at once."""

    def ask(signum: int, frame: FrameType | None) -> None:
        if simulation.stop_requested:
            raise KeyboardInterrupt
        simulation.stop_requested = True

    previous: Any
    try:
        previous = signal.signal(signal.SIGINT, ask)
    except ValueError:  # not in the main thread: the caller handles interrupts
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _facts(world: World) -> dict[str, Any]:
    """What a reader of the log needs to know beforehand."""
    return {
        "recipe": world.recipe.name,
        "method": world.recipe.method["name"],
        "title": method_class(world.recipe.method["name"]).title,
        "seed": world.recipe.seed,
        "rounds": world.recipe.schedule.rounds,
        "updates": world.recipe.schedule.updates,
        "model": world.config.to_dict(),
        "devices": {
            name: {
                "rate": member.rate,
                "samples": member.samples,
                "batch": member.batch,
                "memory": member.device.memory,
                "flops": member.device.flops,
            }
            for name, member in world.house.members.items()
        },
    }


def _write_results(world: World, simulation: Simulation, folder: Path, wall: float) -> dict[str, Any]:
    recipe = world.recipe
    result = {
        "recipe": recipe.name,
        "method": recipe.method["name"],
        "title": method_class(recipe.method["name"]).title,
        "finished": simulation.finished,
        **simulation.scores.result(simulation.server.peak_memory),
        "wall_seconds": round(wall, 3),
        "versions": {"cos2p": cos2p.__version__, "torch": torch.__version__, "python": platform.python_version()},
    }
    weights = simulation.server.weights
    write_atomic(
        folder / "weights.safetensors", safetensors.torch.save({k: v.contiguous() for k, v in weights.items()})
    )
    save_pretrained(folder / "model", world.config, weights)
    write_atomic(folder / "result.json", (json.dumps(result, indent=2, sort_keys=True) + "\n").encode())
    return result


def recipe_toml(recipe: Recipe) -> str:
    return tomli_w.dumps(recipe.model_dump(mode="json", exclude_none=True))


def _same_recipe(recipe: Recipe, folder: Path) -> None:
    """Resuming with another recipe would mix two runs."""
    stored = Recipe.load(folder / "recipe.toml")
    free = {"run", "name", "description"}
    ours, theirs = (r.model_dump(mode="json", exclude=free) for r in (recipe, stored))
    different = list(_differences(theirs, ours))
    if different:
        raise RunError(
            f"{folder} holds a run with another recipe ({', '.join(different[:3])} differ); "
            "resume it with its own recipe, or choose another --out"
        )


def _differences(a: Any, b: Any, path: str = "") -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted({*a, *b}):
            yield from _differences(a.get(key), b.get(key), f"{path}.{key}" if path else key)
    elif a != b:
        yield path
