"""The simulator: real training, computed time. A thin driver of the server with a queue of events in virtual time.

A device's task is trained for real in a worker process, but when its answer arrives is computed: FLOPs over the
device's speed, bytes over its bandwidth, seeded jitter. So a run is the same on every machine, bit for bit, whatever
the number of workers; and a killed run goes on from its checkpoint as if nothing had happened.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from cos2p.devices.clock import lost_after, task_phases
from cos2p.errors import RunError
from cos2p.messages import Order
from cos2p.methods import make_trainer
from cos2p.models.layout import Weights
from cos2p.runtime.decisions import ClientJoined, ClientLeft, Stop, TaskFailed, TimerFired
from cos2p.runtime.results import run_facts
from cos2p.runtime.server import Done, Effect, NewVersion, Send, Server, Timer
from cos2p.runtime.workers import TaskOutcome, Workers, pack_memory, unpack_memory, wait
from cos2p.runtime.world import World, first_weights
from cos2p.tracking.checkpoint import Checkpoint
from cos2p.tracking.event_kinds import (
    NOBODY_LEFT,
    Arrived,
    Died,
    Evaluated,
    Event,
    Failed,
    Finished,
    Joined,
    Left,
    Lost,
    Started,
)
from cos2p.tracking.events import Listener
from cos2p.tracking.figures import RunFigures
from cos2p.training.masks import Remembered


@dataclass(frozen=True, order=True)
class Due:
    """Something that will happen at a virtual time. Ties are broken by the order in which they were planned."""

    time: float
    number: int
    kind: str
    """joins, leaves, silent, noticed, arrives, restarts, timer or end"""
    subject: str
    """A client, a timer or a reason."""
    task: str = ""
    """What the client is then at, if it arrives or restarts."""


class Simulation:
    def __init__(self, world: World, workers: Workers, listener: Listener) -> None:
        self.world, self.workers, self._listener = world, workers, listener
        self.server = Server(world.context, world.method(), first_weights(world.recipe, world.config))
        self.now = 0.0
        self.figures = RunFigures()
        self.memories: dict[str, Remembered] = {name: {} for name in world.context.members}
        self.finished: str | None = None
        self._agenda: list[Due] = []
        self._planned = 0
        self._training: dict[str, tuple[str, Future[TaskOutcome]]] = {}
        """By client: the task it is at, and what comes of it."""
        self._evaluation: tuple[int, Future[dict[str, Any]]] | None = None
        self._due_evaluation: int | None = None
        self.stop_requested = False
        """Set by the user's Ctrl-C: stop between two events."""

    # ------------------------------------------------------------ the loop

    def begin(self) -> None:
        """Plan what is known beforehand."""
        self._log(Started(**run_facts(self.world.recipe, self.world.context)))
        for member in self.world.context.members.values():
            self._plan(member.device.joins_at, "joins", member.name)
            if member.device.leaves_at is not None:
                self._plan(member.device.leaves_at, "leaves", member.name)
            if member.device.dies_at is not None:
                self._plan(member.device.dies_at, "silent", member.name)
        if self.world.recipe.schedule.virtual_seconds is not None:
            self._plan(self.world.recipe.schedule.virtual_seconds, "end", "virtual time")

    def run(self, after_event: Callable[[], None]) -> None:
        """Play events until the server is done; `after_event` is called between two events (checkpoints)."""
        with _one_thread():
            while self.finished is None and not self.stop_requested:
                if not self._agenda:
                    self._carry_out(self.server.handle(Stop(NOBODY_LEFT)))
                    self.finished = self.finished or NOBODY_LEFT
                    break
                self._play(heapq.heappop(self._agenda))
                after_event()
            if self.finished is not None:
                self._finish()

    def _play(self, due: Due) -> None:
        self.now = due.time
        handler = getattr(self, f"_on_{due.kind}")
        handler(due.subject, *([due.task] if due.task else []))

    def _on_joins(self, client: str) -> None:
        if not self.world.context.members[client].device.present_at(self.now):
            return
        self._log(Joined(client=client))
        self._carry_out(self.server.handle(ClientJoined(client)))

    def _on_leaves(self, client: str) -> None:
        self._log(Left(client=client))
        self._abandon(client)
        self._carry_out(self.server.handle(ClientLeft(client)))

    def _on_silent(self, client: str) -> None:
        """The device dies. Nobody knows yet: the server notices when its heartbeat has been missing for a while."""
        self._log(Died(client=client))
        self._abandon(client)
        self._plan(self.now + self.world.recipe.fleet.heartbeat_seconds, "noticed", client)

    def _on_noticed(self, client: str) -> None:
        self._log(Left(client=client))
        self._carry_out(self.server.handle(ClientLeft(client)))

    def _on_restarts(self, client: str, task: str) -> None:
        self._log(Lost(client=client, task=task))
        self._plan(self.now + self.world.context.members[client].device.downtime, "joins", client)

    def _on_arrives(self, client: str, task: str) -> None:
        if client not in self._training or self._training[client][0] != task:
            return  # the device was gone by then
        outcome: TaskOutcome = wait(self._training.pop(client)[1])
        if outcome.update is None:
            self._log(Failed(client=client, task=task, reason=outcome.failure))
            self._carry_out(self.server.handle(TaskFailed(client, task, outcome.failure)))
            return
        self.memories[client] = unpack_memory(outcome.memory)
        self._log(Arrived(client=client, task=task, bytes=len(outcome.update)))
        self._carry_out(self.server.receive(client, outcome.update))

    def _on_timer(self, timer: str) -> None:
        self._carry_out(self.server.handle(TimerFired(timer)))

    def _on_end(self, reason: str) -> None:
        self._carry_out(self.server.handle(Stop(reason)))

    # ------------------------------------------------------------ effects

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._send(effect.order)
            elif isinstance(effect, Timer):
                self._plan(self.now + effect.seconds, "timer", effect.timer)
            elif isinstance(effect, Event):
                self._log(effect)
            elif isinstance(effect, NewVersion):
                self._new_version(effect)
            elif isinstance(effect, Done):
                self.finished = effect.reason

    def _send(self, order: Order) -> None:
        member = self.world.context.members[order.client]
        data = self.server.task(order).to_bytes()
        trainer = make_trainer(self.world.config, order)
        phases = task_phases(trainer, member.device, member.samples, member.test_samples, len(data))
        self._log(self.server.dispatched(order, len(data), phases.to_dict()))
        lost = lost_after(member.device, order, phases.total)
        if lost is not None:
            self._plan(self.now + lost, "restarts", order.client, order.task)
            return
        self._training[order.client] = (order.task, self.workers.train(data, self.memories[order.client]))
        self._plan(self.now + phases.total, "arrives", order.client, order.task)

    def _abandon(self, client: str) -> None:
        """The device is gone: what it was doing is lost."""
        if client in self._training:
            self._training.pop(client)[1].cancel()

    def _new_version(self, effect: NewVersion) -> None:
        self._collect_evaluation()
        if effect.version % self.world.recipe.schedule.evaluate_every == 0:
            self._due_evaluation = effect.version
            self._start_evaluation()

    # ------------------------------------------------------------ evaluation runs beside the training

    def _start_evaluation(self, everything: bool = False) -> None:
        version = self.server.versions.current
        exits = tuple(range(1, self.world.config.depth + 1))
        self._evaluation = (version, self.workers.evaluate(self._evaluated_weights(), exits, everything))

    def _evaluated_weights(self) -> Weights:
        return self.server.method.evaluated_weights(self.server.weights)

    def _collect_evaluation(self) -> None:
        """Log the scores of the last evaluation; they are asked for one round later, so nobody waits for them."""
        if self._evaluation is None:
            return
        version, future = self._evaluation
        self._evaluation, self._due_evaluation = None, None
        result = wait(future)
        self._log(Evaluated(version=version, **result))
        if self.figures.out_of_patience(self.world.recipe.schedule.patience):
            self._plan(self.now, "end", "no better validation score for a while")

    def _finish(self) -> None:
        self._collect_evaluation()
        self._start_evaluation(everything=True)
        assert self._evaluation is not None
        version, future = self._evaluation
        self._evaluation = None
        result = wait(future)
        assert self.finished is not None
        self._log(Finished(reason=self.finished, version=version, **result))

    # ------------------------------------------------------------ small things

    def _plan(self, at: float, kind: str, subject: str, task: str = "") -> None:
        heapq.heappush(self._agenda, Due(at, self._planned, kind, subject, task))
        self._planned += 1

    def _log(self, event: Event) -> None:
        event = event.at(self.now)
        self.figures(event)
        self._listener(event)

    # ------------------------------------------------------------ checkpoint

    def save(self) -> Checkpoint:
        values, groups = self.server.state()
        return Checkpoint(
            values={
                "server": values,
                "now": self.now,
                "planned": self._planned,
                "agenda": [[d.time, d.number, d.kind, d.subject, d.task] for d in self._agenda],
                "due_evaluation": self._due_evaluation,
                "training": sorted(task for task, _ in self._training.values() if task in self.server.orders),
                "finished": self.finished,
            },
            groups=groups,
            blobs={f"memory.{client}": pack_memory(memory) for client, memory in self.memories.items() if memory},
        )

    def restore(self, values: Mapping[str, Any], checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint: tasks that were being trained are trained again, with the same result."""
        self.server.load_state(values["server"], checkpoint.groups)
        self.now, self._planned, self.finished = values["now"], values["planned"], values["finished"]
        self._agenda = [Due(*entry) for entry in values["agenda"]]
        heapq.heapify(self._agenda)
        for name, blob in checkpoint.blobs.items():
            self.memories[name.removeprefix("memory.")] = unpack_memory(blob)
        for task in values["training"]:
            order = self.server.orders.get(task)
            if order is None:
                raise RunError(f"the checkpoint names the task {task!r} but does not hold it; it is damaged")
            data = self.server.task(order).to_bytes()
            self._training[order.client] = (task, self.workers.train(data, self.memories[order.client]))
        self._due_evaluation = values["due_evaluation"]
        if self._due_evaluation is not None:
            self._start_evaluation()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums over segments depend on the number of threads in their last bit; a run must not."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
