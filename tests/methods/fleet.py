"""A fleet in one process: the server's effects carried out at once, every message through its bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from cos2p.aggregation.settings import ScheduleSettings
from cos2p.messages import Order, Task
from cos2p.methods import build_method, run_task
from cos2p.methods.base import Method, RunContext
from cos2p.models.layout import Weights, init_weights
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import RunSetup, build_run_setup
from cos2p.server.protocol import ClientJoined, Effect, Finish, Send
from cos2p.server.server import Server
from cos2p.tracking.checkpoint import Checkpoint
from cos2p.tracking.event_kinds import Event
from cos2p.training.masks import Remembered
from cos2p.training.shard import Shard
from cos2p.training.wire import as_it_travels
from tests.tiny import same


@cache
def digits() -> RunSetup:
    """Three devices of rates 1/8, 1/4 and 1/2 with a few digits each, and a model of two blocks."""
    device = {"preset": "laptop", "batch": 16, "flops": 1e9}
    return build_run_setup(
        Recipe.parse(
            {
                "name": "digits for methods",
                "model": {"size": "vit-nano", "depth": 2, "dim": 16, "heads": 4, "mlp": 32, "patch": 4},
                "data": {"source": "digits", "train_samples": 120, "test_samples": 40},
                "fleet": {"devices": [{**device, "rate": rate} for rate in (0.125, 0.25, 0.5)]},
                "training": {"epochs": 1},
                "schedule": {"rounds": 2},
            }
        )
    )


def digits_house(**schedule: Any) -> RunContext:
    return replace(digits().context, schedule=ScheduleSettings.model_validate({"redispatch": "at-once", **schedule}))


def with_rates(context: RunContext, *rates: float) -> RunContext:
    """The first devices of a context, with these rates."""
    members = list(context.members.values())[: len(rates)]
    return replace(context, members={m.name: replace(m, rate=rate) for m, rate in zip(members, rates, strict=True)})


class Fleet:
    """Devices answer in the order in which they were given their tasks."""

    def __init__(
        self, context: RunContext, method: Mapping[str, Any], shards: Mapping[str, Shard] | None = None,
        weights: Weights | None = None,
    ) -> None:  # fmt: skip
        self.context, self._method = context, dict(method)
        self.shards = digits().shards if shards is None else shards
        self.start = init_weights(context.config, context.seed) if weights is None else weights
        self.server = self._new_server()
        self.memories: dict[str, Remembered] = {name: {} for name in context.members}
        self.notes: list[Event] = []
        self.orders: list[Order] = []
        """Every task that was given out."""
        self.done: str | None = None
        self._pending: deque[Order] = deque()
        for name in context.members:
            self._carry_out(self.server.handle(ClientJoined(name)))

    def _new_server(self) -> Server:
        return Server(self.context, build_method(self._method, self.context), dict(self.start))

    @property
    def method(self) -> Method:
        return self.server.method

    def run(self, answers: int | None = None) -> Fleet:
        """Until the server is done, or for so many answers."""
        while self.done is None and answers != 0:
            self.answer()
            answers = None if answers is None else answers - 1
        return self

    def answer(self) -> None:
        order = self._pending.popleft()
        task = Task.from_bytes(self.server.orders.task(order).to_bytes())
        memory = self.memories[order.client]
        given = {name: tensor.clone() for name, tensor in {**task.weights, **task.prefix}.items()}
        update, self.memories[order.client] = run_task(self.context.config, task, self.shards[order.client], memory)
        assert same(given, {**task.weights, **task.prefix}), "a worker gives the same tensors to its next task"
        self._carry_out(self.server.receive(order.client, as_it_travels(update, order).to_bytes()))

    def restart(self, folder: Path) -> None:
        """The server stops and goes on from its checkpoint."""
        values, groups = self.server.state()
        Checkpoint(values, groups).write(folder / "checkpoint")
        stored = Checkpoint.read(folder / "checkpoint")
        self.server = self._new_server()
        self.server.load_state(stored.values, stored.groups)

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._pending.append(effect.order)
                self.orders.append(effect.order)
            elif isinstance(effect, Event):
                self.notes.append(effect)
            elif isinstance(effect, Finish):
                self.done = effect.reason


def check_a_restart_changes_nothing(
    settings: Mapping[str, Any], folder: Path, updates: int = 6, house: RunContext | None = None
) -> None:
    """A server that is stopped after four answers and built again goes on as if nothing had been."""
    house = house or digits_house(updates=updates)
    straight = Fleet(house, settings).run()
    broken = Fleet(house, settings).run(answers=4)
    broken.restart(folder)
    broken.run()
    assert same(broken.server.weights, straight.server.weights)
    assert [order.spec for order in broken.orders] == [order.spec for order in straight.orders]
