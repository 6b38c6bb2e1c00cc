"""What a method can do with so many bytes on every device: the largest rate, rank or group of blocks that fits.

Nothing is trained: a method is asked for the tasks it would give out, and the ledger of each task says what it needs.
Methods that follow a rate get the largest of a fine ladder; those that look at a device's memory choose for themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cos2p.errors import BudgetError
from cos2p.memory.task_plan import largest_at, tasks_at
from cos2p.memory.tasks import Assignment, Member, RunContext
from cos2p.methods import build_method
from cos2p.methods.base import Method
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import RunSetup, build_run_setup, first_weights
from cos2p.studies.grid import recipe_digest
from cos2p.training.statistics import StatisticsTrainer
from cos2p.units import format_bytes

RATES = tuple(float(f"{2 ** (-step / 4):.4g}") for step in range(37))
"""From 1 down to 1/512, four to a halving."""


@dataclass(frozen=True)
class Fit:
    """What a method takes of a budget."""

    rate: float
    """R of every device."""
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
        plain = recipe.model_copy(update={"method": {"name": ""}})
        key = recipe_digest(plain)
        if key not in self._run_setups:
            run_setup = build_run_setup(recipe)
            self._run_setups[key] = run_setup, first_weights(recipe, run_setup.config)
        return self._run_setups[key]

    def fit(self, recipes: Sequence[Recipe], memory: int) -> Fit | Absent:
        """The largest fit of one method, whose recipes (of several seeds) differ in their data's division alone."""
        tries = [_Tries(recipe.method, *self.of(recipe), memory) for recipe in recipes]
        smallest = next((rate for rate in reversed(RATES) if all(trying.possible(rate) for trying in tries)), RATES[0])
        for trying in tries:
            least = trying.needed(smallest)
            if least > memory:
                return Absent(trying.refusal or f"its smallest task needs {format_bytes(least)}")
        rate = next(rate for rate in RATES if all(trying.needed(rate) <= memory for trying in tries))
        words = sorted({words for trying in tries for words in trying.words(rate)})
        return Fit(rate, " / ".join(words), max(trying.needed(rate) for trying in tries))


class _Tries:
    """One method on one division of the data, every device with so much memory."""

    def __init__(self, method: dict[str, Any], run_setup: RunSetup, weights: Weights, memory: int) -> None:
        self._method, self._weights, self._memory = method, weights, memory
        self._turns = max(3, run_setup.context.config.depth)
        schedule = run_setup.context.schedule.model_copy(update={"rounds": self._turns, "updates": None})
        self._context = replace(
            run_setup.context, schedule=schedule
        )  # the turns are a whole run: some tasks come late in it
        self._worst = 0
        """The turn that needed most: looked at first, a rate that does not fit is soon seen."""
        self._known: dict[float, int] = {}
        self.refusal = ""
        """What the method itself said when it could not give a task."""

    def needed(self, rate: float) -> int:
        """Bytes of the largest task, or of the first that does not fit."""
        if rate not in self._known:
            self._known[rate] = self._largest(rate)
        return self._known[rate]

    def possible(self, rate: float) -> bool:
        """Whether the method has submodels of this rate at all, whatever they need."""
        try:
            self._at(rate)
        except BudgetError:
            return False
        return True

    def _largest(self, rate: float) -> int:
        method, weights = self._at(rate)
        largest = 0
        for turn in (self._worst, *range(self._turns + 1)):
            for member in _extremes(method.context.members.values()):
                try:
                    needed = largest_at(method, member, turn, weights)
                except BudgetError as error:
                    needed, self.refusal = self._memory + 1, str(error)
                if needed > self._memory:
                    self._worst = turn
                    return needed
                largest = max(largest, needed)
        return largest

    def _at(self, rate: float) -> tuple[Method, Weights]:
        members = {name: _with(member, self._memory, rate) for name, member in self._context.members.items()}
        context: RunContext = replace(self._context, members=members, enforce_memory=True)
        method = build_method(self._method, context)
        return method, method.initial_weights(dict(self._weights))

    def words(self, rate: float) -> set[str]:
        method, weights = self._at(rate)
        members = method.context.members.values()
        tasks = [list(tasks_at(method, member, 0, weights))[-1] for member in members]
        return {takes(method.context.config, rate, task) for task in tasks}


def takes(config: ModelConfig, rate: float, task: Assignment) -> str:
    """A task in words: what there is more of where there are more bytes."""
    if task.trainer is StatisticsTrainer:
        return "no training"
    rank = getattr(task.settings, "rank", None)
    if rank is not None:
        return f"rank {rank}" if rank else "head alone"
    if rate < 1:  # a method that chooses for itself fits at any
        return f"R {rate:.3g}"
    return f"{len(task.spec.window)} of {config.depth} blocks"


def _with(member: Member, memory: int, rate: float) -> Member:
    return replace(member, device=member.device.model_copy(update={"memory": memory}), rate=rate)


def _extremes(members: Iterable[Member]) -> list[Member]:
    """Those whose tasks can be the largest: most samples, largest batch, most tokens."""
    every = list(members)
    chosen = [
        max(every, key=lambda member: member.samples),
        max(every, key=lambda member: member.batch),
        max(every, key=lambda member: int(member.rows or "0", 16).bit_count()),
    ]
    return list({member.name: member for member in chosen}.values())
