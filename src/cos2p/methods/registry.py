"""Methods and their trainers by name: those that are shipped with `cos2p`, and those of installed packages.

A method of your own is one file and one entry point in the group `cos2p.methods`; `cos2p_rivals` registers its methods
in the same way. A package is imported when one of its methods or trainers is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib import import_module, invalidate_caches
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import torch

from cos2p.accelerator import CPU
from cos2p.errors import ConfigError, RecipeError
from cos2p.messages import Order, Task, Update
from cos2p.methods.base import Method, RunContext, heads_of
from cos2p.methods.closed_heads import check_room_to_train, with_closed_head
from cos2p.methods.device_method import DeviceMethod, method_of
from cos2p.models.config import ModelConfig
from cos2p.settings import Settings
from cos2p.training.client_cache import ClientCache
from cos2p.training.contract import TaskContract
from cos2p.training.masks import Remembered
from cos2p.training.shard import Shard
from cos2p.training.trainer import Trainer

_GROUP = "cos2p.methods"
"""Group of entry points."""

_BUILT_IN = (
    "closed_heads",
    "cos2p",
    "fedavg",
    "fedlora",
    "fedrolex",
)


class _Methods(Mapping[str, type[Method]]):
    """Methods by name; one of an installed package is imported when it is first taken out."""

    def __init__(self, shipped: Mapping[str, type[Method]], installed: Iterable[EntryPoint]) -> None:
        self._entries = {entry.name: entry for entry in installed}
        self._found = {name: kind for name, kind in shipped.items() if name not in self._entries}
        self._names = sorted(self._found.keys() | self._entries.keys())

    def __getitem__(self, name: str) -> type[Method]:
        if name in _of_modules:
            return _of_modules[name]
        if name not in self._found:
            self._found[name] = _loaded(self._entries[name])
        return self._found[name]

    def loaded(self) -> tuple[type[Method], ...]:
        """Built-in ones, those of installed packages that were taken out already, and those of `import_method`."""
        return (*self._found.values(), *_of_modules.values())

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@cache
def methods() -> _Methods:
    """Every method known here: the built-in ones and those of installed packages."""
    return _Methods(_built_in(), entry_points(group=_GROUP))


@cache
def _built_in() -> dict[str, type[Method]]:
    found: dict[str, type[Method]] = {}
    for module in _BUILT_IN:
        for value in vars(import_module(f"cos2p.methods.{module}")).values():
            if isinstance(value, type) and issubclass(value, Method) and "name" in vars(value):
                found[value.name] = value
    return found


def _loaded(entry: EntryPoint) -> type[Method]:
    try:
        value = entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"the entry point {entry.name!r} of {_GROUP} ({entry.value}) cannot be loaded: {error}; "
            "install its package again, or remove it"
        ) from None
    return _checked(value, f"the entry point {entry.name!r} of {_GROUP}")


def _checked(value: Any, where: str) -> type[Method]:
    if isinstance(value, type) and issubclass(value, DeviceMethod):
        value = method_of(value)
    if not (isinstance(value, type) and issubclass(value, Method)):
        raise ConfigError(f"{where} is not a Method class, and not a DeviceMethod class")
    _trainers_of((*_built_in().values(), value))  # refuses a trainer that has the name of a built-in one
    return value


_of_modules: dict[str, type[Method]] = {}
"""Methods that `import_method` has imported, by `module:Class`."""


def import_method(name: str, folders: Iterable[Path] = ()) -> None:
    """Import the class that `module:Class` names, from these folders too, so that recipes may name it.

    Only for what a user of this machine runs: a name that came over a network is never imported.
    """
    if name in _of_modules:
        return
    module, _, kind = name.partition(":")
    for folder in map(str, (folder.resolve() for folder in folders)):
        if folder not in sys.path:
            sys.path.append(folder)  # behind all others; worker processes inherit it
    invalidate_caches()
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise RecipeError(f"{name!r} cannot be imported: {error}") from None
        raise RecipeError(
            f"there is no module {module!r} for {name!r}, next to the recipe, in the current folder or installed; "
            "PYTHONPATH may name its folder"
        ) from None
    except Exception as error:
        raise RecipeError(f"{name!r} cannot be imported: {type(error).__name__}: {error}") from None
    if not hasattr(found, kind):
        raise RecipeError(f"{found.__file__} has no class {kind!r}")
    _of_modules[name] = _checked(getattr(found, kind), f"{name!r}")


def require_installed(name: str) -> None:
    """RecipeError for a method that is imported by its module: a real fleet runs installed methods alone."""
    if ":" in name:
        raise RecipeError(
            f"method.name = {name!r} names a file of your own; a real fleet runs only methods that are installed on "
            "the server and on every device: package it (docs/howto/add-a-method.md)"
        )


def method_class(name: str) -> type[Method]:
    known = methods()
    if name not in known:
        if ":" in name:
            raise RecipeError(
                f"{name!r} names a class of a module, which is imported for a simulation of your own alone; "
                "here only installed methods run (docs/howto/add-a-method.md)"
            )
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
    heads = heads_of(settings)
    reported = heads is not None and (heads.start_form or heads.finish_form)
    method = (with_closed_head(kind) if reported else kind)(settings, context)
    check_room_to_train(method)  # here alone: a device that joins later makes the method anew, and ends no run
    return method


def trainers() -> dict[str, type[Trainer]]:
    """The trainers of all methods' devices, by the name that stands in orders."""
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


def trainer_class(name: str) -> type[Trainer]:
    """The trainer that an order names. If no method that is loaded has it, all installed packages are imported."""
    loaded = _trainers_of(methods().loaded())
    known = loaded if name in loaded else trainers()
    if name not in known:
        raise ConfigError(
            f"unknown trainer {name!r}; known: {', '.join(sorted(known))}; "
            "a method lists its own in `trainers`, and is installed on the device too"
        )
    return known[name]


def make_trainer(config: ModelConfig, order: Order) -> Trainer:
    """The trainer that does the work of this order."""
    return trainer_class(order.trainer)(config, order)


def make_contract(config: ModelConfig, order: Order) -> TaskContract:
    """The contract of the order: what it sends, what must come back and what it costs."""
    return trainer_class(order.trainer).contract_of(config, order)


def run_task(
    config: ModelConfig,
    task: Task,
    shard: Shard,
    remembered: Remembered,
    client_cache: ClientCache | None = None,
    device: torch.device = CPU,
) -> tuple[Update, Remembered]:
    """Do the task. Returns the update and what the device remembers now; what was given is not changed."""
    return make_trainer(config, task.order).run(task, shard, remembered, client_cache, device)
