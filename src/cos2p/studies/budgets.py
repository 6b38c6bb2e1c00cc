"""What a method can do with so many bytes on every device: the part of the model that each device would train.

Nothing is trained: every device is planned (`cos2p.memory`) as in a run that leaves its rate open.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cos2p.errors import BudgetError
from cos2p.memory.plan import takes
from cos2p.memory.planning import every_task, with_parts
from cos2p.memory.tasks import Member
from cos2p.memory.ways import needed_bytes
from cos2p.methods import build_method
from cos2p.methods.base import Method
from cos2p.models.layout import Weights
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import RunSetup, build_run_setup, first_weights
from cos2p.studies.grid import recipe_digest
from cos2p.units import format_bytes


@dataclass(frozen=True)
class Fit:
    """What a method takes of a budget."""

    takes: str
    """In words: a rate, a rank, a number of blocks."""
    needed: int
    """Bytes of its largest task."""


@dataclass(frozen=True)
class Absent:
    """No task of the method fits."""

    reason: str


class RunSetups:
    """Data and fleets of recipes, read once for all methods."""

    def __init__(self) -> None:
        self._run_setups: dict[str, tuple[RunSetup, Weights]] = {}

    def of(self, recipe: Recipe) -> tuple[RunSetup, Weights]:
        groups = tuple(group.model_copy(update={"rate": 1.0}) for group in recipe.fleet.devices)  # planned below
        fleet = recipe.fleet.model_copy(update={"devices": groups, "enforce_memory": False})
        plain = recipe.model_copy(update={"method": {"name": "fedavg"}, "fleet": fleet})
        key = recipe_digest(plain)
        if key not in self._run_setups:
            run_setup = build_run_setup(plain)
            self._run_setups[key] = run_setup, first_weights(plain, run_setup.config)
        return self._run_setups[key]

    def fit(self, recipes: Sequence[Recipe], memory: int) -> Fit | Absent:
        """What one method takes, whose recipes (of several seeds) differ in their data's division alone."""
        words: set[str] = set()
        needed = 0
        for recipe in recipes:
            try:
                method, weights = _planned(recipe, *self.of(recipe), memory)
                for member in _extremes(method.context.members.values()):
                    for alone, task in every_task(method, member, weights):
                        needed = max(needed, needed_bytes(alone, member, task))
                    words.add(takes(task, member))
            except BudgetError as error:
                return Absent(str(error))
            if needed > memory:
                return Absent(f"its smallest task needs {format_bytes(needed)}")
        return Fit(" / ".join(sorted(words)), needed)


def _planned(recipe: Recipe, run_setup: RunSetup, weights: Weights, memory: int) -> tuple[Method, Weights]:
    members = {
        name: replace(member, device=member.device.model_copy(update={"memory": memory}), auto=True)
        for name, member in run_setup.context.members.items()
    }
    context = replace(run_setup.context, members=members, enforce_memory=True)
    method = build_method(recipe.method, with_parts(build_method(recipe.method, context)))
    return method, method.initial_weights(dict(weights))


def _extremes(members: Iterable[Member]) -> list[Member]:
    """Those whose tasks can be the largest: most samples, largest batch, most tokens."""
    every = list(members)
    chosen = [
        max(every, key=lambda member: member.samples),
        max(every, key=lambda member: member.batch),
        max(every, key=lambda member: int(member.rows or "0", 16).bit_count()),
    ]
    return list({member.name: member for member in chosen}.values())
