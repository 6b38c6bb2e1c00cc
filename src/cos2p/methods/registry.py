"""Methods and their trainers by name: those that are shipped, and those of installed packages.

A method of your own is one file and one entry point in the group `cos2p.methods`.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import torch

from cos2p.accelerator import CPU
from cos2p.errors import ConfigError, RecipeError
from cos2p.messages import Order, Task, Update
from cos2p.methods.base import Method, RunContext
from cos2p.methods.closed_heads import check_room_to_train, with_told_head
from cos2p.methods.head_settings import HeadSettings
from cos2p.models.config import ModelConfig
from cos2p.settings import Settings
from cos2p.training.masks import Remembered
from cos2p.training.shard import Shard
from cos2p.training.shelf import Shelf
from cos2p.training.trainer import Trainer

_BUILT_IN = (
    "adavit",
    "chain",
    "cos2p",
    "fedasync",
    "fedavg",
    "fedbuff",
    "fedepth",
    "fedlora",
    "fedmezo",
    "fedncm",
    "fedpm",
    "fedra",
    "fedrolex",
    "fedrolex_official",
    "heterofl",
    "platon",
    "prunefl",
    "qvit",
    "ramfed",
    "topwindow",
)


@cache
def methods() -> dict[str, type[Method]]:
    """Every method known here: the built-in ones and those of installed packages."""
    found: dict[str, type[Method]] = {}
    for module in _BUILT_IN:
        for value in vars(import_module(f"cos2p.methods.{module}")).values():
            if isinstance(value, type) and issubclass(value, Method) and "name" in vars(value):
                found[value.name] = value
    for entry in entry_points(group="cos2p.methods"):
        value = entry.load()
        if not (isinstance(value, type) and issubclass(value, Method)):
            raise ConfigError(f"the entry point {entry.name!r} of cos2p.methods is not a Method class")
        found[entry.name] = value
    return found


def method_class(name: str) -> type[Method]:
    known = methods()
    if name not in known:
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise RecipeError(f"unknown method {name!r}; {hint}known: {', '.join(sorted(known))}")
    return known[name]


def method_settings(values: Mapping[str, Any]) -> Settings:
    """The typed settings of the `[method]` table, whose `name` says which method."""
    name = values.get("name")
    if not isinstance(name, str):
        raise RecipeError(
            f"method.name is {name!r}; name one, or choose it with --method: {', '.join(sorted(methods()))}"
        )
    return method_class(name).settings_type.model_validate({k: v for k, v in values.items() if k != "name"})


def build_method(values: Mapping[str, Any], context: RunContext) -> Method:
    kind, settings = method_class(str(values["name"])), method_settings(values)
    told = isinstance(settings, HeadSettings) and (settings.start_form or settings.finish_form)
    method = (with_told_head(kind) if told else kind)(settings, context)
    check_room_to_train(method)  # here alone: a device that joins later makes the method anew, and ends no run
    return method


def trainers() -> dict[str, type[Trainer]]:
    """What the devices of all methods can do, by the name that stands in orders."""
    return _trainers_of(tuple(methods().values()))


@lru_cache(maxsize=8)
def _trainers_of(known: tuple[type[Method], ...]) -> dict[str, type[Trainer]]:
    found: dict[str, type[Trainer]] = {}
    for method in known:
        for trainer in method.trainers:
            other = found.setdefault(trainer.name, trainer)
            if other is not trainer:
                raise ConfigError(
                    f"two trainers are called {trainer.name!r}: {_place(other)} and {_place(trainer)}; rename one"
                )
    return found


def _place(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def make_trainer(config: ModelConfig, order: Order) -> Trainer:
    """Who does the work of this order, knows its cost and what travels for it."""
    known = trainers()
    if order.trainer not in known:
        raise ConfigError(
            f"unknown trainer {order.trainer!r}; known: {', '.join(sorted(known))}; "
            "a method lists its own in `trainers`, and is installed on the device too"
        )
    return known[order.trainer](config, order)


def run_task(
    config: ModelConfig,
    task: Task,
    shard: Shard,
    remembered: Remembered,
    shelf: Shelf | None = None,
    device: torch.device = CPU,
) -> tuple[Update, Remembered]:
    """Do the task. Returns the update and what the device remembers now; what was given is not changed."""
    return make_trainer(config, task.order).run(task, shard, remembered, shelf, device)
