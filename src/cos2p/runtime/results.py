"""What every run folder holds, whichever driver filled it: the recipe as used, the facts, the figures, the model."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError

import cos2p
from cos2p.checksums import check
from cos2p.errors import CheckpointError, RunError
from cos2p.methods import method_class
from cos2p.methods.base import RunContext
from cos2p.recipe import Recipe
from cos2p.runtime.classes import Classes
from cos2p.runtime.model_folder import save_model
from cos2p.runtime.settled import settled_as
from cos2p.server.server import Server
from cos2p.tracking.figures import RunFigures
from cos2p.tracking.files import explained, write_json, write_noted

WALL_CLOCK_FIELDS = ("wall_seconds", "versions")
"""Fields of result.json that may differ between two simulations of the same recipe."""


def run_facts(
    recipe: Recipe, context: RunContext, classes: Classes, notes: Sequence[str] | None = None
) -> dict[str, Any]:
    """The fields of `Started`: what a reader of the log needs to know beforehand."""
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
            }
            for name, member in context.members.items()
        },
    }


def write_results(
    recipe: Recipe, server: Server, figures: RunFigures, classes: Classes, finished: str, folder: Path, wall: float
) -> dict[str, Any]:
    """Write the figures and the model into the run folder; returns the figures."""
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
    """What makes two recipes the same run."""
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
