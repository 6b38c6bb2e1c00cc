"""Tasks that are out: an order for each client at work, its contract, and the tensors that go with it.

An order is made when the coordinator dispatches a task, and kept until the task is answered or given up.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch

from cos2p.aggregation.privacy.checks import check_covered
from cos2p.errors import BudgetError
from cos2p.memory.planning import advice, check_fit, check_last_fit
from cos2p.memory.tasks import Call, RunContext
from cos2p.memory.ways import fitted_order
from cos2p.messages import Order, Task, pieces_of, write_task
from cos2p.methods import TaskContract, make_contract
from cos2p.methods.base import Method, trained_instead
from cos2p.models.layout import Weights
from cos2p.server.client_cache import ClientCaches
from cos2p.server.protocol import Dispatch
from cos2p.tracking.event_kinds import Rated
from cos2p.training.contract import packed
from cos2p.training.rate_trial import FALLBACK, LADDERS, best_place, read_report
from cos2p.training.settings import TrainingSettings


class Orders(Mapping[str, Order]):
    def __init__(self, context: RunContext, method: Method, versions: Versions, forget: Callable[[int], None]) -> None:
        """`forget` is called with the version of an order that is closed."""
        self.context, self.method, self.versions, self._forget = context, method, versions, forget
        self.rates = RateSearch(context.training)
        self.caches = ClientCaches(context.config)
        """The frozen parts that each client has kept."""
        self._orders: dict[str, Order] = {}
        self._task_of: dict[str, str] = {}
        self._contracts: dict[str, TaskContract] = {}
        """By task."""
        self._newest: TaskContract | None = None
        """The contract of the order that is being made."""
        self._evaluated: tuple[int, Weights] | None = None
        """A version as the method evaluates it."""

    def __getitem__(self, task: str) -> Order:
        return self._orders[task]

    def __iter__(self) -> Iterator[str]:
        return iter(self._orders)

    def __len__(self) -> int:
        return len(self._orders)

    def clients(self) -> Sequence[str]:
        return tuple(self._task_of)

    def task_of(self, client: str) -> str | None:
        return self._task_of.get(client)

    # ------------------------------------------------------------ making one

    def make(self, dispatch: Dispatch, progress: float, final: bool) -> Order:
        """The client's order, open from now on. BudgetError if it cannot be done.

        `progress`: how far the training is, for the learning rate; `final`: whether the round is the final one.
        """
        member = self.context.members[dispatch.client]
        weights = self.versions.weights
        call = Call(member, dispatch.version, dispatch.cycle, dispatch.attempt, weights, final)
        check_last_fit(self.method, call, trained_instead(self.method.settings))
        try:
            assignment = self.method.assign(call)
        except BudgetError as error:
            raise BudgetError(f"{member.name}: {error}; {advice(self.method, member)}") from None
        order = fitted_order(
            self.method,
            member,
            assignment,
            task=dispatch.task,
            version=dispatch.version,
            cycle=dispatch.cycle,
            attempt=dispatch.attempt,
            progress=progress,
            lr=self.rates.rate(),
            rates=self.rates.to_try(member.name) if assignment.trainer.contract_type.trains else (),
        )
        cached = self.caches.plan(self.contract(order), self._asked_of(order))
        order = replace(order, cached=cached) if cached is not None else order
        if self.context.privacy.on:
            check_covered(order, self.context.config, self.context.training.embeddings)
        check_fit(self.method, order, self.needed_memory(order))
        self.close(order.client)
        self._orders[order.task], self._task_of[order.client] = order, order.task
        return order

    def contract(self, order: Order) -> TaskContract:
        """The order's contract; the same object for as long as it is open."""
        known = self._contracts.get(order.task)
        if known is None or known.order is not order:
            known = self._newest
            if known is None or known.order is not order:
                known = self._newest = make_contract(self.context.config, order)
            if order.task in self._orders:
                self._contracts[order.task] = known
        return known

    def needed_memory(self, order: Order) -> int:
        samples = self.context.members[order.client].samples
        return self.contract(order).memory(samples).total

    def close(self, client: str) -> None:
        task = self._task_of.pop(client, None)
        if task is not None:
            self._contracts.pop(task, None)
            self._forget(self._orders.pop(task).version)

    # ------------------------------------------------------------ its tensors

    def task(self, order: Order) -> Task:
        """The order with its tensors, cut from the version it names. Can be made again as long as it is open.

        All of them, also those that the device has (`travels`).
        """
        weights, contract = self._asked_of(order), self.contract(order)
        return Task(order, packed(contract.sent(weights), order.wire.down), contract.sent_frozen(weights))

    def travels(self, task: Task) -> Task:
        """The task without the frozen parts that its device has."""
        if not (held := _held(task.order)):
            return task
        frozen = {name: tensor for name, tensor in task.prefix.items() if not name.startswith(held)}
        return replace(task, prefix=frozen)

    def write_task(self, order: Order, path: Path) -> None:
        """The same into a file, as it travels. No second copy of a large model is made for it."""
        weights, contract = self._asked_of(order), self.contract(order)
        sent = pieces_of(packed(contract.sent(weights), order.wire.down))
        write_task(path, order, sent, contract.frozen_pieces(weights, _held(order)))

    def _asked_of(self, order: Order) -> Weights:
        """The model that a task is cut from: its version, or that version as it is evaluated."""
        weights = self.versions[order.version]
        if not self.method.from_evaluated(order, weights):
            return weights
        if self._evaluated is None or self._evaluated[0] != order.version:
            self._evaluated = order.version, self.method.evaluated_weights(weights)
        return self._evaluated[1]

    # ------------------------------------------------------------ checkpoint

    def state(self) -> dict[str, Any]:
        orders = [order.to_dict() for order in self._orders.values()]
        return {"orders": orders, "client_caches": self.caches.state(), "rates": self.rates.state()}

    def load_state(self, values: Mapping[str, Any], versions: Versions) -> None:
        self.versions, self._evaluated = versions, None
        self._orders = {entry["task"]: Order.from_dict(entry) for entry in values["orders"]}
        self._task_of = {order.client: order.task for order in self._orders.values()}
        self.caches.load_state(values["client_caches"])
        if "rates" in values:  # a checkpoint of an earlier release has none
            self.rates.load_state(values["rates"])


def _held(order: Order) -> tuple[str, ...]:
    """How the names of the frozen parts begin that the device has kept."""
    return () if order.cached is None else tuple(order.cached.held)


SPOOLED_BYTES = 64 * 2**20
"""The tensors that only an older version has go to disk if they take more than this."""


class Versions:
    """The current version, and every older one that an unanswered task was cut from."""

    def __init__(self, weights: Weights, version: int = 0, spool: Path | None = None) -> None:
        self.current = version
        self.spool = spool
        """Folder for older versions; None: they stay in memory."""
        self._held: dict[int, Weights] = {version: weights}

    @classmethod
    def restored(cls, current: int, groups: Mapping[str, Weights], spool: Path | None) -> Versions:
        """From a checkpoint's groups of tensors, in which `version.N` is a version."""
        versions = cls(groups[f"version.{current}"], current, spool)
        for name, group in groups.items():
            kind, _, number = name.partition(".")
            if kind == "version" and int(number) != current:
                versions.restore(int(number), group)
        return versions

    def __getitem__(self, version: int) -> Weights:
        return self._held[version]

    @property
    def weights(self) -> Weights:
        return self._held[self.current]

    @property
    def held(self) -> tuple[int, ...]:
        return tuple(sorted(self._held))

    def advance(self, weights: Weights, keep: bool = True) -> None:
        """The next version. `keep`: the one before may still be asked for."""
        before = self._held.pop(self.current)
        old, self.current = self.current, self.current + 1
        self._held[self.current] = weights
        if keep:
            self.restore(old, before)

    def restore(self, version: int, weights: Weights) -> None:
        """Put back an older version."""
        self._held[version] = dict(weights)
        if self.spool is None:
            return
        current = self.weights
        alone = {name: tensor for name, tensor in weights.items() if tensor is not current.get(name)}
        if sum(tensor.nbytes for tensor in alone.values()) <= SPOOLED_BYTES:
            return
        mapped = _mapped(alone, self.spool / f".version-{version}.cos2p-tmp")
        for number, held in self._held.items():
            if number != self.current:  # an older one may share it
                held.update({name: mapped[name] for name, tensor in alone.items() if held.get(name) is tensor})

    def forget(self, version: int) -> None:
        """Nobody will ask for this one any more, unless it is the current."""
        if version != self.current:
            self._held.pop(version, None)


def _mapped(tensors: Weights, path: Path) -> Weights:
    """The same values in a file that has no name any more: it is gone with the tensors, however the process ends."""
    try:
        safetensors.torch.save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
        return safetensors.torch.load_file(path)
    finally:
        path.unlink(missing_ok=True)


QUORUM = 0.5
"""Share of the devices that take part which settles the rate."""


class RateSearch:
    def __init__(self, training: TrainingSettings) -> None:
        self.ladder: Sequence[float] = LADDERS[training.optimizer] if training.lr == "auto" else ()
        """Rates that are tried; empty where the recipe sets the rate."""
        self.found: dict[str, list[float]] = {}
        """By device that did its trial: each rate's loss over the first one; empty if it could not try."""
        self.settled: float | None = None if training.lr == "auto" else training.lr

    def rate(self) -> float:
        """The best that is known now."""
        return self.settled or self.ladder[self._place()]

    def to_try(self, client: str) -> Sequence[float]:
        """Rates that the device's next training task tries first."""
        return () if self.settled or client in self.found else self.ladder

    def note(self, order: Order, report: Mapping[str, Any]) -> None:
        if order.rates and self.settled is None:
            self.found[order.client] = read_report(order, report)

    def settle(self, devices: int) -> list[Rated]:
        """A round closed: if enough of the devices that take part have tried, the rate is found."""
        if self.settled is not None or len(self.found) < max(1, math.ceil(QUORUM * devices)):
            return []
        self.settled = self.rate()
        return [Rated(lr=self.settled, tried=list(self.ladder), losses=self._middle(), devices=len(self._tried()))]

    def _tried(self) -> list[list[float]]:
        return [ratios for ratios in self.found.values() if ratios]

    def _middle(self) -> list[float]:
        return [round(statistics.median_high(ratios), 4) for ratios in zip(*self._tried(), strict=True)]

    def _place(self) -> int:
        return best_place(self._middle()) if self._tried() else FALLBACK

    # ------------------------------------------------------------ checkpoint

    def state(self) -> dict[str, Any]:
        return {"found": self.found, "settled": self.settled}

    def load_state(self, values: Mapping[str, Any]) -> None:
        self.found = {client: list(ratios) for client, ratios in values["found"].items()}
        self.settled = values["settled"]
