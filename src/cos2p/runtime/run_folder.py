"""The folder of a run, whichever session fills it: begun, gone on with, saved, finished.

DIR/recipe.toml            the recipe as used, every default written out
DIR/events.jsonl           what happened
DIR/checkpoint.safetensors the last consistent state; what happened until then is in the log
DIR/checkpoint-before.…    the one before it
DIR/checksums.json         of recipe, result and weights
DIR/result.json            the figures, when the run is over
DIR/stopped.json           why it stopped before that, if it could say so
DIR/weights.safetensors    the final weights with the whole bank of exits
DIR/model/                 the final model as a Hugging Face folder
DIR/devices/               each device's own submodel, as it last tested it (run.device_models)
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError

import cos2p
from cos2p.aggregation.merge import is_large
from cos2p.checksums import check
from cos2p.errors import CheckpointError, Cos2pError, Interrupted, RunError
from cos2p.memory.plan import planned_words
from cos2p.methods import method_class
from cos2p.recipe import Recipe
from cos2p.runtime.evaluation import Classes
from cos2p.runtime.model_folder import recipe_toml, save_model
from cos2p.runtime.session import Session
from cos2p.runtime.settled import settled_as
from cos2p.server.server import Server
from cos2p.tracking.checkpoint import BackgroundWriter, Checkpoint
from cos2p.tracking.event_kinds import Event, Resumed, Started
from cos2p.tracking.events import EventLog
from cos2p.tracking.figures import RunFigures
from cos2p.tracking.files import (
    StopNote,
    explained,
    prepare_folder,
    read_json,
    remove_stop_note,
    write_json,
    write_noted,
    write_stop_note,
)

CHEAP = 20
"""A checkpoint that takes a twentieth of the time between two, at most, is taken more often than it has to be."""


def log_notes(event: Event) -> None:
    """For callers who do not listen: what they should know of data and model."""
    for note in (event.notes or ()) if isinstance(event, Started) else ():
        logging.getLogger(__name__).warning(note)


def earlier_result(recipe: Recipe, folder: Path, *, longer: bool = False) -> dict[str, Any] | None:
    """The figures of a run that is over, if it is the recipe's; None if there is none, or (`longer`) if the recipe goes
    on for more rounds or updates."""
    if not (folder / "result.json").exists():
        return None
    if longer and is_longer(recipe, folder):
        return None
    check_same_recipe(recipe, folder)
    return read_json(folder / "result.json")


def begin_folder(
    recipe: Recipe, folder: Path, *, resume: bool, overwrite: bool = False, longer: bool = False
) -> Recipe:
    """A folder with the recipe in it; a RunError if it holds another run, or one that is not to be touched.

    Returns the recipe with what it leaves open as the run in the folder has it.

    `longer`: the same run with more rounds or updates is not another one; what it came to before is no result any more.
    """
    prepare_folder(folder, overwrite=overwrite, resume=resume)
    if resume and (folder / "recipe.toml").exists():
        if longer and is_longer(recipe, folder):
            (folder / "result.json").unlink(missing_ok=True)
        else:
            check_same_recipe(recipe, folder)
        recipe = settled_as(recipe, stored_recipe(folder))
    remove_stop_note(folder)
    keep_recipe(recipe, folder)
    return recipe


def keep_recipe(recipe: Recipe, folder: Path) -> None:
    write_noted(folder / "recipe.toml", recipe_toml(recipe).encode())


@contextmanager
def noting_why_it_stops(folder: Path) -> Iterator[None]:
    """An error that ends the block before its time is noted in the folder, for those who look at it later."""
    try:
        yield
    except BaseException as error:
        by_user = isinstance(error, KeyboardInterrupt | Interrupted)
        defect = not isinstance(error, Cos2pError | KeyboardInterrupt)
        words = f"{type(error).__name__}: {error}" if defect else str(error)
        write_stop_note(folder, StopNote(not by_user, words or "stopped by Ctrl-C"))
        raise


class RunFolder:
    def __init__(self, path: Path, recipe: Recipe, kind: str, *, as_often_as_cheap: bool = False) -> None:
        """`kind` is the session's. The log is cut back to the checkpoint, or to nothing without one.

        `as_often_as_cheap`: a checkpoint after each round where that costs next to nothing, not only every
        `run.checkpoint_seconds`.
        """
        self.path, self.recipe, self._kind = path, recipe, kind
        self._seconds, self._as_often_as_cheap = recipe.run.checkpoint_seconds, as_often_as_cheap
        self._file = path / "checkpoint.safetensors"
        self.checkpoint = Checkpoint.read(self._file) if self._file.exists() else None
        if self.checkpoint is not None and self.checkpoint.values["kind"] != kind:
            raise RunError(f"{path} holds the checkpoint of a {self.checkpoint.values['kind']}, not of a {kind}")
        self.base: int = self.checkpoint.values["log"] if self.checkpoint is not None else 0
        """Bytes of the log that were there before."""
        self.log = EventLog(path / "events.jsonl", self.base)
        self._saved = time.monotonic()
        self._saving = 0.0
        self._version: int | None = None
        self._writer = BackgroundWriter()

    def close(self) -> None:
        """A checkpoint under way is completed; should it fail, the one before is still there."""
        with suppress(RunError):
            self._writer.wait()
        self.log.close()

    def resumed(self, session: Session) -> Event:
        """Returned once the session has its state back."""
        coordinator = session.server.coordinator
        done = {"t": session.now, "version": coordinator.version, "merged": coordinator.merged}
        return Resumed(**run_facts(self.recipe, session.server, session.classes) | done | {"log": self.log.path})

    def save_if_due(self, session: Session) -> None:
        """Between two events: after a round, and not too soon after the last time.

        Not of a simulation that is over: from before its end it can go on to more rounds as if there had been none.
        """
        if session.finished is not None and session.punctual:
            return
        version = session.server.versions.current
        if self._version is None:
            self._version = version
        if version != self._version and self._writer.busy:
            self._writer.wait()  # the version it writes is a copy of the model more, as soon as there is a newer one
        pause = min(self._seconds, CHEAP * self._saving) if self._as_often_as_cheap else self._seconds
        if version == self._version or time.monotonic() - self._saved < pause:
            return
        if not is_large(session.server.weights):
            self.save(session)
        elif not session.server.aggregator.merge.holders:
            # Between two rounds there are no sums: nothing has to be copied for a file that takes a while.
            self._save_next_to(session)

    def save(self, session: Session) -> None:
        """Now, and wait for it."""
        began = time.monotonic()
        self._writer.wait()
        self._state(session).write(self._file)
        self._version, self._saved = session.server.versions.current, time.monotonic()
        self._saving = self._saved - began

    def _save_next_to(self, session: Session) -> None:
        """Written by a thread while the run goes on."""
        self._saving = self._writer.seconds
        state = self._state(session)
        growing = {group for group in state.groups if not group.startswith("version.")}
        self._writer.write(state.snapshot(growing), self._file)
        self._version, self._saved = session.server.versions.current, time.monotonic()

    def _state(self, session: Session) -> Checkpoint:
        state = session.save()
        values = {"kind": self._kind, "session": state.values, "log": self.log.offset()}
        return Checkpoint(values, state.groups, state.blobs)

    def finish(self, session: Session, wall: float) -> dict[str, Any]:
        """The figures and the model; a process killed in between finishes once more, with the same outcome."""
        assert session.finished is not None
        self._writer.wait()
        server, figures = session.server, session.figures
        return write_results(self.recipe, server, figures, session.classes, session.finished, self.path, wall)


WALL_CLOCK_FIELDS = ("wall_seconds", "versions")
"""Fields of result.json that may differ between two simulations of the same recipe."""


def run_facts(recipe: Recipe, server: Server, classes: Classes, notes: Sequence[str] | None = None) -> dict[str, Any]:
    """The fields of `Started`: what a reader of the log needs to know beforehand."""
    context = server.context
    plans = planned_words(server.method, server.weights)
    return {
        "recipe": recipe.name,
        "method": recipe.method["name"],
        "title": method_class(recipe.method["name"]).title,
        "seed": recipe.seed,
        "rounds": recipe.schedule.rounds,
        "updates": recipe.schedule.updates,
        "model": context.config.to_dict(),
        "data": classes.facts(),
        "full_memory": context.full_memory(),
        "notes": list(notes) if notes else None,
        "devices": {
            name: {
                "rate": member.rate,
                "samples": member.samples,
                "batch": member.batch,
                "memory": member.device.memory,
                "flops": member.device.flops,
                **plans.get(name, {}),
            }
            for name, member in context.members.items()
        },
    }


def write_results(
    recipe: Recipe, server: Server, figures: RunFigures, classes: Classes, finished: str, folder: Path, wall: float
) -> dict[str, Any]:
    result = {
        "recipe": recipe.name,
        "method": recipe.method["name"],
        "title": method_class(recipe.method["name"]).title,
        "finished": finished,
        **figures.result(),
        **classes.figures(),
        "wall_seconds": round(wall, 3),
        "versions": {"cos2p": cos2p.__version__, "torch": torch.__version__, "python": platform.python_version()},
    }
    weights = server.method.evaluated_weights(server.weights)
    write_noted(folder / "weights.safetensors", safetensors.torch.save({k: v.contiguous() for k, v in weights.items()}))
    with suppress(CheckpointError), explained(folder / "model"):  # one that has no form there is in the run folder
        try:
            save_model(folder / "model", recipe, server.context.config, weights, result)
        except SafetensorError as error:  # it hides the system's reason in its text
            raise RunError(f"{folder / 'model'}: {error}; free some space, then go on with --resume") from error
    write_json(folder / "result.json", result, indent=2, sort_keys=True)
    return result


def stored_recipe(folder: Path) -> Recipe:
    """That of the run in the folder; RunError if it is damaged."""
    return Recipe.load(check(folder / "recipe.toml"), modules=())


def is_longer(recipe: Recipe, folder: Path) -> bool:
    """Whether the recipe is that of the folder with more rounds or updates, and nothing else."""
    stored = stored_recipe(folder)
    recipe = settled_as(recipe, stored)
    ends = {name: getattr(stored.schedule, name) for name in ("rounds", "updates")}
    changes = [(old, getattr(recipe.schedule, name)) for name, old in ends.items()]
    same = _compared(recipe.model_copy(update={"schedule": recipe.schedule.model_copy(update=ends)}))
    grown = any(old is not None and new is not None and new > old for old, new in changes)
    kept = all(old == new or (old is not None and (new is None or new > old)) for old, new in changes)
    return grown and kept and same == _compared(stored)


def _compared(recipe: Recipe) -> dict[str, Any]:
    """The fields that make two recipes the same run."""
    return recipe.model_dump(mode="json", exclude={"run", "name", "description"})


def check_same_recipe(recipe: Recipe, folder: Path) -> None:
    """Resuming with another recipe would mix two runs."""
    stored = stored_recipe(folder)
    ours, theirs = _compared(settled_as(recipe, stored)), _compared(stored)
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
