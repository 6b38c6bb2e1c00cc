"""The simulator: real training, computed time. A thin driver of the server with a queue of events in virtual time.

A device's task is trained for real in a worker process, but when its answer arrives is computed: FLOPs over the
device's speed, bytes over its bandwidth, seeded jitter. So a run is the same, bit for bit, whatever
the number of workers; and a killed run goes on from its checkpoint as if nothing had happened.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cos2p.data import Bundle, DataConfig
from cos2p.data.own import bundle_name, checked, handed_over, pack_bundle
from cos2p.devices.clock import lost_after, task_phases
from cos2p.devices.device import Device
from cos2p.errors import Interrupted, RunError
from cos2p.memory.parts import Part
from cos2p.messages import Order
from cos2p.methods.base import Member
from cos2p.processes.children import keep_freed_pages, on_interrupt
from cos2p.processes.pool import wait
from cos2p.recipe import Recipe
from cos2p.runtime.evaluation import Classes
from cos2p.runtime.own_models import OWN_MODELS, forget_unclaimed, take_own_model
from cos2p.runtime.run_folder import (
    RunFolder,
    begin_folder,
    earlier_result,
    keep_recipe,
    log_notes,
    noting_why_it_stops,
    run_facts,
)
from cos2p.runtime.run_setup import RunSetup, build_run_setup, first_weights
from cos2p.runtime.session import Session
from cos2p.runtime.workers import TaskOutcome, Workers, pack_memory, unpack_memory
from cos2p.server.protocol import ClientJoined, ClientLeft, Enough, Stop, TaskFailed, TimerFired
from cos2p.server.server import Server
from cos2p.tracking.checkpoint import Checkpoint
from cos2p.tracking.event_kinds import (
    NOBODY_LEFT,
    Arrived,
    Event,
    Failed,
    Joined,
    Left,
    Lost,
    Started,
)
from cos2p.tracking.events import Listener, read_events
from cos2p.tracking.files import held, write_atomic
from cos2p.training.masks import Remembered


@dataclass(frozen=True, order=True)
class Due:
    """Something that will happen at a virtual time. Ties are broken by the order in which they were planned."""

    time: float
    number: int
    kind: str
    """joins, goes, arrives, restarts, timer or end"""
    subject: str
    """A client, a timer or a reason."""
    task: str = ""
    """The client's task then, if it arrives or restarts."""


class Simulation(Session):
    kind = "simulation"
    punctual = True

    def __init__(self, run_setup: RunSetup, workers: Workers, listener: Listener) -> None:
        super().__init__(run_setup.recipe, workers, listener)
        self.run_setup, self.workers = run_setup, workers
        weights = first_weights(run_setup.recipe, run_setup.config)  # a broken checkpoint is named before anything else
        self.server = Server(run_setup.context, run_setup.method(), weights)
        self.classes = Classes.of(run_setup.bundle, (shard.test for shard in run_setup.shards.values()))
        self.notes = run_setup.notes
        self.memories: dict[str, Remembered] = {name: {} for name in run_setup.context.members}
        self._now = 0.0
        self._agenda: list[Due] = []
        self._planned = 0
        self._training: dict[str, tuple[str, Future[TaskOutcome]]] = {}
        """By client: the task it is at, and what comes of it."""
        self._chains: set[str] = set()
        """Chains of the features that the last checkpoint speaks of."""

    @property
    def now(self) -> float:
        return self._now

    # ------------------------------------------------------------ what happens next

    def begin(self) -> None:
        self.log(Started(**run_facts(self.run_setup.recipe, self.server, self.classes, self.notes)))
        for member in self.run_setup.context.members.values():
            self._plan_session(member.device, 0.0)
        if self.run_setup.recipe.schedule.virtual_seconds is not None:
            self._plan(self.run_setup.recipe.schedule.virtual_seconds, "end", "virtual time")

    def step(self) -> None:
        """The next entry of the agenda; an empty one is the end."""
        if self._agenda:
            self._play(heapq.heappop(self._agenda))
        else:
            self.carry_out(self.server.handle(Stop(NOBODY_LEFT)))
            self.finished = self.finished or NOBODY_LEFT

    def _play(self, due: Due) -> None:
        self._now = due.time
        handler = getattr(self, f"_on_{due.kind}")
        handler(due.subject, *([due.task] if due.task else []))

    def _on_joins(self, client: str) -> None:
        if client in self._training or not self.run_setup.context.members[client].device.present_at(self.now):
            return  # back by its hours already, or gone again
        self.log(Joined(client=client))
        if self.run_setup.places[client].base:
            self.server.orders.caches.claim(client, self.run_setup.own_base(client))
        self.carry_out(self.server.handle(ClientJoined(client)))

    def _plan_session(self, device: Device, after: float) -> None:
        """The device is there from now or its next session on, and goes at its end."""
        session = device.session_at(after)
        if session is None:
            return
        self._plan(max(session[0], after), "joins", device.name)
        if session[1] < math.inf:
            self._plan(session[1], "goes", device.name)

    def _on_goes(self, client: str) -> None:
        """Its session is over; what it was doing is lost, and it will be back if it has another one."""
        device = self.run_setup.context.members[client].device
        back = device.session_at(self.now)
        self.log(Left(client=client, until=None if back is None else back[0]))
        if client in self._training:
            self._training.pop(client)[1].cancel()
        self.carry_out(self.server.handle(ClientLeft(client)))
        self._plan_session(device, self.now)

    def _on_restarts(self, client: str, task: str) -> None:
        self.log(Lost(client=client, task=task))
        self._plan(self.now + self.run_setup.context.members[client].device.downtime, "joins", client)

    def _on_arrives(self, client: str, task: str) -> None:
        if client not in self._training or self._training[client][0] != task:
            return  # the device was gone by then
        outcome: TaskOutcome = wait(self._training.pop(client)[1])
        if outcome.update is None:
            self.log(Failed(client=client, task=task, reason=outcome.failure))
            if outcome.out_of_memory:
                self.log(self.server.lower(client, task))
            self.carry_out(self.server.handle(TaskFailed(client, task, outcome.failure)))
            return
        self.memories[client] = unpack_memory(outcome.memory)
        if outcome.own_model:
            take_own_model(outcome.own_model, client)
        self.log(Arrived(client=client, task=task, bytes=len(outcome.update)))
        self.carry_out(self.server.receive(client, outcome.update))

    def _on_timer(self, timer: str) -> None:
        self.carry_out(self.server.handle(TimerFired(timer)))

    def _on_end(self, reason: str) -> None:
        self.carry_out(self.server.handle(Enough(reason)))

    # ------------------------------------------------------------ what the server wants done

    def send(self, order: Order) -> None:
        member = self.run_setup.context.members[order.client]
        whole = self.server.orders.task(order)
        task, travels = whole.packet(), self.server.orders.travels(whole)
        size = len(task if travels is whole else travels.packet())
        contract = self.server.orders.contract(order)
        widths = self.run_setup.shards[order.client].widths
        phases = task_phases(contract, member.device, member.samples, member.test_samples, size, widths)
        self.log(self.server.dispatched(order, size, phases.to_dict()))
        lost = lost_after(member.device, order, phases.total)
        if lost is not None:
            self._plan(self.now + lost, "restarts", order.client, order.task)
            return
        self._training[order.client] = (order.task, self.workers.train(task, self.memories[order.client]))
        self._plan(self.now + phases.total, "arrives", order.client, order.task)

    def start_timer(self, timer: str, seconds: float) -> None:
        self._plan(self.now + seconds, "timer", timer)

    def end(self, reason: str) -> None:
        self._plan(self.now, "end", reason)

    def _plan(self, at: float, kind: str, subject: str, task: str = "") -> None:
        heapq.heappush(self._agenda, Due(at, self._planned, kind, subject, task))
        self._planned += 1

    # ------------------------------------------------------------ checkpoint

    def _clear_client_cache(self) -> None:
        """Drop features that nobody wants any more; those of the checkpoint before this stay until this is there."""
        before, self._chains = self._chains, self.server.orders.caches.chains()
        if self.workers.client_cache is not None:
            self.workers.client_cache.keep_chains(before | self._chains)

    def save(self) -> Checkpoint:
        self._clear_client_cache()
        values, groups = self.server.state()
        return Checkpoint(
            values={
                "server": values,
                "now": self.now,
                "planned": self._planned,
                "agenda": [[d.time, d.number, d.kind, d.subject, d.task] for d in self._agenda],
                "evaluating": self.evaluations.at_work,
                "training": sorted(task for task, _ in self._training.values() if task in self.server.orders),
                "finished": self.finished,
                "lowered": {
                    member.name: [member.largest, member.part.kind, member.part.size]
                    for member in self._lowered()
                    if member.part
                },
            },
            groups=groups,
            blobs={f"memory.{client}": pack_memory(memory) for client, memory in self.memories.items() if memory},
        )

    def _lowered(self) -> list[Member]:
        """Those who get smaller tasks than the recipe says, since one had no room."""
        return [m for name, m in self.server.context.members.items() if m is not self.run_setup.context.members[name]]

    def restore(self, values: Mapping[str, Any], checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint: tasks that were being trained are trained again, with the same result."""
        for client, (largest, *part) in values.get("lowered", {}).items():
            member = self.server.context.members[client].training(Part(*part))
            self.server.welcome(replace(member, largest=largest))
        self.server.load_state(values["server"], checkpoint.groups)
        self._chains = self.server.orders.caches.chains()
        self._now, self._planned, self.finished = values["now"], values["planned"], values["finished"]
        self._agenda = [Due(*entry) for entry in values["agenda"]]
        heapq.heapify(self._agenda)
        for name, blob in checkpoint.blobs.items():
            self.memories[name.removeprefix("memory.")] = unpack_memory(blob)
        for task in values["training"]:
            order = self.server.orders.get(task)
            if order is None:
                raise RunError(f"the checkpoint names the task {task!r} but does not hold it; it is damaged")
            sent = self.server.orders.task(order).packet()
            self._training[order.client] = (task, self.workers.train(sent, self.memories[order.client]))
        if values["evaluating"]:
            self.evaluations.ask(everything=values["evaluating"] == "everything")


def run(
    recipe: Recipe | str | Path,
    out: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    listener: Listener | None = None,
    data: Bundle | Callable[[DataConfig, int], Bundle] | None = None,
    as_bound: bool = False,
) -> dict[str, Any]:
    """Simulate the recipe into the folder `out` and return its figures (those of `result.json`).

    `resume` goes on from the folder's checkpoint, or returns the figures if the run was over; one that is over, or not,
    goes on to more `schedule.rounds` or `updates` if the recipe has more. `listener` gets
    every event as it is logged. `data` takes the place of the recipe's data: a bundle, or a function of the `[data]`
    table and the seed that gives one. It is written into the folder, where every worker, and a run that is resumed by
    its recipe, finds it. `as_bound`: a method that cannot keep the devices' memory (FedAvg) may train over it, to be
    compared with; the figures say so.
    """
    recipe = recipe if isinstance(recipe, Recipe) else Recipe.load(recipe)
    path = Path(out)
    own: tuple[Path, bytes] | None = None
    if data is not None:
        content = pack_bundle(checked(data(recipe.data, recipe.seed) if callable(data) else data, "data"))
        own = path / bundle_name(content), content
        recipe = recipe.model_copy(update={"data": handed_over(recipe.data, own[0])})
    if resume and (known := earlier_result(recipe, path, longer=True)) is not None:
        return known
    recipe = begin_folder(recipe, path, resume=resume, overwrite=overwrite, longer=True)
    if own is not None:
        write_atomic(*own)
    with held(path), noting_why_it_stops(path):
        return _simulate(recipe, path, listener or log_notes, as_bound)


def _simulate(recipe: Recipe, path: Path, listener: Listener, as_bound: bool) -> dict[str, Any]:
    began = time.monotonic()
    keep_freed_pages()
    run_setup = build_run_setup(recipe, as_bound)
    recipe = run_setup.recipe
    keep_recipe(recipe, path)
    own_models = path / OWN_MODELS if recipe.run.device_models else None
    folder, workers = RunFolder(path, recipe, Simulation.kind), Workers(recipe, path / "client_cache", own_models)

    def notify(event: Event) -> None:
        folder.log.write(event)
        listener(event)

    try:
        simulation = Simulation(run_setup, workers, notify)
        simulation.server.versions.spool = path
        if folder.checkpoint is None:
            simulation.begin()
        else:
            simulation.restore(folder.checkpoint.values["session"], folder.checkpoint)
            simulation.figures.replay(read_events(folder.log.path))
            listener(folder.resumed(simulation))
        with on_interrupt(_asks_to_stop(simulation)):
            simulation.play(between=lambda: folder.save_if_due(simulation))
        if simulation.finished is None:
            folder.save(simulation)
            raise Interrupted(f"stopped at virtual second {simulation.now:.0f}; go on with --resume")
        simulation.check_anybody_was_able()
        return folder.finish(simulation, time.monotonic() - began)
    finally:
        workers.close()
        forget_unclaimed(path / OWN_MODELS)
        folder.close()


def _asks_to_stop(session: Session) -> Callable[[], None]:
    """The first Ctrl-C stops between two events with a checkpoint; a second one stops at once."""

    def ask() -> None:
        if session.stop_requested:
            raise KeyboardInterrupt
        session.stop_requested = True

    return ask
