"""A fleet in one process: the server's effects carried out at once, every message through its bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from cos2p.messages import Order, Task
from cos2p.methods import build_method, run_task
from cos2p.methods.base import Method, RunContext
from cos2p.models.layout import Weights, init_weights
from cos2p.runtime.workers import pack_memory, unpack_memory
from cos2p.server.protocol import ClientJoined, Effect, Finish, Send
from cos2p.server.server import Server
from cos2p.tracking.checkpoint import Checkpoint
from cos2p.tracking.event_kinds import Event
from cos2p.training.contract import as_it_travels
from cos2p.training.masks import Remembered
from cos2p.training.shard import Shard


class Fleet:
    """Devices answer in the order in which they were given their tasks."""

    def __init__(
        self,
        context: RunContext,
        method: Mapping[str, Any],
        shards: Mapping[str, Shard],
        weights: Weights | None = None,
    ) -> None:
        self.context, self._method, self.shards = context, dict(method), shards
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
        """Server and devices stop; the server goes on from its checkpoint, the devices from what they remember."""
        values, groups = self.server.state()
        Checkpoint(values, groups).write(folder / "checkpoint")
        stored = Checkpoint.read(folder / "checkpoint")
        self.server = self._new_server()
        self.server.load_state(stored.values, stored.groups)
        self.memories = {name: unpack_memory(pack_memory(memory)) for name, memory in self.memories.items()}

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._pending.append(effect.order)
                self.orders.append(effect.order)
            elif isinstance(effect, Event):
                self.notes.append(effect)
            elif isinstance(effect, Finish):
                self.done = effect.reason


def same(a: Weights, b: Weights) -> bool:
    """Bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
