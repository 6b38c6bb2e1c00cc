"""What cells do in the runner's tests. Imports little: every cell is a process that imports this file."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cos2p.errors import RunError, TrainingError
from cos2p.recipe import Recipe
from cos2p.runtime.model_folder import recipe_toml
from cos2p.studies.progress import Status
from cos2p.tracking.files import MARKER

Tell = Callable[[Status], None]


def succeed(recipe: Mapping[str, Any], folder: Path, tell: Tell) -> None:
    """Write figures that tell which recipe made them; count how often it was asked."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "starts").open("a") as file:
        file.write("x")
    tell(Status(0.5, "half way"))
    result = {"top1": recipe["seed"] / 10, "workers": recipe["run"]["workers"], "wall_seconds": 1.0}
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")


def leave_much(recipe: Mapping[str, Any], folder: Path, tell: Tell) -> None:
    """A run folder with all that a run leaves."""
    succeed(recipe, folder, tell)
    parsed = Recipe.parse(recipe)
    (folder / "recipe.toml").write_text(recipe_toml(parsed), encoding="utf-8")
    (folder / "model").mkdir()
    for name in (MARKER, "events.jsonl", "checkpoint.safetensors", "weights.safetensors", "model/weights"):
        (folder / name).touch()


def misbehave(recipe: Mapping[str, Any], folder: Path, tell: Tell) -> None:
    """Seed 0 succeeds; the others end in all the ways a run can."""
    if recipe["seed"] == 1:
        raise TrainingError("the loss became nan")
    if recipe["seed"] == 2:
        print("last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if recipe["seed"] == 3:
        raise ZeroDivisionError("a defect")
    if recipe["seed"] == 4:
        raise RunError("the disk is full")
    succeed(recipe, folder, tell)


def together(recipe: Mapping[str, Any], folder: Path, tell: Tell) -> None:
    """Wait until the other cell is here too: only cells that run at the same time ever end."""
    meeting = folder.parent / "meeting"
    meeting.mkdir(parents=True, exist_ok=True)
    (meeting / folder.name).touch()
    while len(list(meeting.iterdir())) < 2:
        time.sleep(0.02)
    succeed(recipe, folder, tell)


def linger(recipe: Mapping[str, Any], folder: Path, tell: Tell) -> None:
    """Seed 0 succeeds at once; the others work until they are stopped, and note that they were."""
    if recipe["seed"] == 0:
        return succeed(recipe, folder, tell)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pid").write_text(str(os.getpid()), encoding="utf-8")
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        (folder / "checkpoint").touch()
        raise
