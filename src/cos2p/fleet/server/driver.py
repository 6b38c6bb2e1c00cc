"""One run on a real fleet: what happens on the network becomes events for the server, its effects become tasks.

The counterpart of `runtime.simulation`: the same session on the wall's clock instead of a virtual one. It knows nothing
of NVFlare; `Port` is all it asks of a network, so it can be driven by hand in a test. Network threads call the methods
of the first section, which only take a note; everything else happens in the one thread that calls `play`.

Liveness. A client sends heartbeats while it works, so a task may take hours: slow is not dead. One that is silent for
`fleet.heartbeat_seconds` has left; should its answer come all the same, it is merged. One that is heard and does not
answer is waited for until `schedule.task_timeout`, or without it `PATIENCE` times as long as most devices take.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median_low
from typing import Any, Protocol

from cos2p.aggregation.privacy.clipping import fresh_draw
from cos2p.devices.device import Device
from cos2p.errors import BudgetError, RecipeError, TrainingError, UpdateRefused
from cos2p.fleet.messages import JoinRequest
from cos2p.fleet.server.inbox import Answered, Asked, Excluded, Happening, Pace, Ready, Timers, measured_numbers
from cos2p.fleet.server.members import Presence, member_of
from cos2p.fleet.server.transfers import Transfers
from cos2p.fleet.spool import Notice
from cos2p.memory.parts import Part
from cos2p.messages import Order
from cos2p.messages.envelope import Buffer, mapped
from cos2p.methods import build_method, make_contract
from cos2p.methods.base import Member
from cos2p.models.config import ModelConfig
from cos2p.recipe import Recipe
from cos2p.runtime.evaluation import Evaluator
from cos2p.runtime.run_folder import run_facts
from cos2p.runtime.run_setup import first_weights, run_context
from cos2p.runtime.session import Session
from cos2p.server.coordinator import timer_client
from cos2p.server.protocol import ClientJoined, ClientLeft, Enough, TaskFailed, TimerFired, UpdateRejected
from cos2p.server.server import Server
from cos2p.tracking.checkpoint import Checkpoint
from cos2p.tracking.event_kinds import (
    Arrived,
    Event,
    Failed,
    Joined,
    Left,
    Refused,
    Started,
    Traffic,
    Unfit,
)
from cos2p.tracking.events import Listener

END_OF_TIME = "end of time"
MAPPED_BYTES = 64 * 2**20
PATIENCE, LEAST_PATIENCE = 20.0, 300.0
"""How long a task is waited for: so many times what the device in the middle took for its last one, and these seconds
at least. A later update is merged all the same."""
ALLOWANCE = 2**20
"""Bytes an update may have beyond its tensors: names, shapes, the report."""


def refuse_attack(recipe: Recipe) -> None:
    """Devices of a real fleet do not lie on command."""
    if recipe.attack.kind != "none":
        raise RecipeError(
            f"attack.kind is {recipe.attack.kind!r}: only simulations let devices lie; take the [attack] table out"
        )


class Port(Protocol):
    """All that the driver asks of a network."""

    def offer(self, client: str, notice: Notice) -> None:
        """Notify the client that a task is ready to be fetched."""

    def withdraw(self, client: str) -> None:
        """The client's task is void; it need not know."""


class Driver(Session):
    kind = "fleet"
    punctual = False

    def __init__(
        self,
        recipe: Recipe,
        config: ModelConfig,
        port: Port,
        transfers: Transfers,
        evaluator: Evaluator,
        listener: Listener,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(recipe, evaluator, listener)
        refuse_attack(recipe)
        self.config, self.port, self.transfers = config, port, transfers
        self.begun = False
        """Whether there is a server yet: a method is made for the members it begins with."""
        self.started_at = time.time()
        """The wall's clock at virtual second 0; survives a checkpoint, so an outage counts."""
        self.presence = Presence(recipe.fleet.heartbeat_seconds, clock)
        self.excluded: dict[str, str] = {}
        """Clients that are not heard any more, and why."""
        self._bases: dict[str, Mapping[str, str]] = {}
        """By client: the frozen parts that it has in files of its own."""
        self._happenings: queue.SimpleQueue[Happening] = queue.SimpleQueue()
        self._timers, self._clock, self._pace = Timers(clock), clock, Pace(clock)
        self._given: dict[str, float] = {}
        """By client: when it got its task."""
        self._took: dict[str, float] = {}
        """By client: seconds from its last task to the answer."""

    def begin(self, members: Iterable[Member]) -> None:
        """Make the server for those who are here now. More may come."""
        recipe = self.recipe
        context = run_context(recipe, self.config, {member.name: member for member in members})
        if recipe.schedule.task_timeout is None:
            context = replace(context, schedule=context.schedule.model_copy(update={"task_timeout": LEAST_PATIENCE}))
        method = build_method(recipe.method, context)
        weights = first_weights(recipe, self.config)
        self.server = Server(context, method, weights, draw=fresh_draw, exclude_unfit=True)
        self.server.versions.spool = self.transfers.folder
        self.begun = True

    @property
    def now(self) -> float:
        return max(0.0, time.time() - self.started_at)

    # ------------------------------------------------------------ called by the network's threads

    def hello(self, client: str, session: str) -> None:
        """A client process began: whatever it was given before is void."""
        self._limit_pace(client)
        self.void(client)
        self.presence.hello(client, session)

    def ready(self, client: str, session: str, facts: JoinRequest) -> None:
        self._limit_pace(client)
        if self.presence.is_current(client, session):
            self._happenings.put(Ready(client, facts))

    def heartbeat(self, client: str, session: str | None = None) -> None:
        self.presence.heard(client, session)

    def answered(self, answer: Answered) -> None:
        self.presence.heard(answer.client)
        self._happenings.put(answer)

    def unfit(self, client: str, reason: str) -> None:
        """A device cannot take part: its data are missing or do not fit the model."""
        self._limit_pace(client)
        self._happenings.put(Unfit(client=client, reason=reason))

    def refused(self, client: str, task: str, reason: str) -> None:
        """Something was sent that is not let in; nothing changes but the log."""
        self._limit_pace(client)
        self._happenings.put(Refused(client=client, task=task, reason=reason))

    def exclude(self, client: str, reason: str) -> None:
        """A client broke the rules of the network: it takes no further part, and nothing that it sends is heard."""
        if client not in self.excluded:
            self.excluded[client] = reason
            self._happenings.put(Excluded(client, reason))

    def _limit_pace(self, client: str) -> None:
        if client not in self.excluded and self._pace.too_many(client):
            self.exclude(client, f"it sent more than {Pace.MOST} messages in a minute that no run needs")

    def pause(self) -> None:
        self._happenings.put(Asked())

    def end(self, reason: str) -> None:
        """Aggregate what has come and finish."""
        self._happenings.put(Asked(reason))

    # ------------------------------------------------------------ the loop

    def save(self) -> Checkpoint:
        values, groups = self.server.state()
        members = self.server.context.members.values()
        state = {
            "server": values,
            "members": [_member_dict(member) for member in members],
            "started_at": self.started_at,
            "traffic": self.transfers.traffic.to_dict(),
        }
        return Checkpoint(state, groups)

    def restore(self, values: Mapping[str, Any], checkpoint: Checkpoint) -> None:
        """Nobody's process is known yet, timers begin anew."""
        self.begin(_member(entry) for entry in values["members"])
        self.server.load_state(values["server"], checkpoint.groups)
        self.started_at = values["started_at"]
        self.transfers.traffic.load_dict(values["traffic"])
        self.presence.restore(self.server.context.members)
        for timer in self.server.coordinator.pending_timers():
            self._timers.start(timer.timer, timer.seconds)
        self._limit_time()

    def gather(self, expected: set[str], seconds: float, stopped: Callable[[], bool] = lambda: False) -> None:
        """Wait for those who are expected, but not for ever, so that a run begins with the fleet and not with one.

        At least one there must be; TrainingError if none of those who are expected can take part.
        """
        deadline = time.monotonic() + seconds
        waiting: dict[str, Member] = {}
        unfit: dict[str, Unfit] = {}
        refused: list[Refused] = []
        while not (self.stop_requested or stopped()):
            if waiting and (expected <= {*waiting, *unfit} or time.monotonic() > deadline):
                break
            if unfit and expected <= unfit.keys():
                reasons = "; ".join(f"{client}: {event.reason}" for client, event in unfit.items())
                raise TrainingError(f"no device is able to take part; {reasons}")
            happening = self._next()
            if isinstance(happening, Ready):
                known = self._member(happening)
                if isinstance(known, Member):
                    waiting[happening.client] = known
                else:
                    happening = known
            if isinstance(happening, Excluded):
                waiting.pop(happening.client, None)
                happening = Unfit(client=happening.client, reason=happening.reason)
            if isinstance(happening, Unfit):
                unfit[happening.client] = happening
            elif isinstance(happening, Refused):
                refused.append(happening)
            elif isinstance(happening, Asked):
                self.stop_requested = True
        self.begin(waiting[name] for name in sorted(waiting))
        self.started_at = time.time()
        self.log(Started(**run_facts(self.recipe, self.server, self.classes, self.notes)), 0.0)
        self._limit_time()
        for event in (*unfit.values(), *refused):
            self.log(event)
        for client in sorted(waiting):
            self._join(client)
        for client, reason in self.excluded.items():
            self.carry_out(self.server.exclude(client, reason))

    def _limit_time(self) -> None:
        if self.recipe.schedule.virtual_seconds is not None:
            self._timers.start(END_OF_TIME, self.recipe.schedule.virtual_seconds - self.now)

    def step(self) -> None:
        """Do what came in meanwhile: news, timers, silences and returns."""
        if (happening := self._next()) is not None:
            self._happen(happening)
        for timer in self._timers.due():
            self._ring(timer)
        for client in self.presence.mark_silent():
            self._left(client)
        for client in self.presence.mark_returned():
            self._returned(client)
        self._check_anybody_is_left()

    def _next(self) -> Happening | None:
        try:
            happening = self._happenings.get(timeout=min(0.2, self._timers.seconds_to_next()))
        except queue.Empty:
            return None
        if isinstance(happening, Ready | Answered | Unfit) and happening.client in self.excluded:
            return None
        return happening

    def _happen(self, happening: Happening) -> None:
        if isinstance(happening, Ready):
            member = self._member(happening)
            if isinstance(member, Unfit):
                self.log(member)
                if happening.client in self.server.context.members:  # its process is another now, and has no task
                    self.carry_out(self.server.handle(ClientLeft(happening.client)))
            else:
                self._welcome(member)
                self._join(happening.client)
        elif isinstance(happening, Answered):
            self._answer(happening)
        elif isinstance(happening, Excluded):
            self.void(happening.client)
            self.carry_out(self.server.exclude(happening.client, happening.reason))
        elif isinstance(happening, Event):
            self.log(happening)
        elif happening.end:
            self.carry_out(self.server.handle(Enough(happening.end)))
        else:
            self.stop_requested = True

    def _ring(self, timer: str) -> None:
        if timer == END_OF_TIME:
            self.carry_out(self.server.handle(Enough("virtual time")))
        elif (left := self._patience_left(timer)) > 0:
            self._timers.start(timer, left)
        else:
            self.carry_out(self.server.handle(TimerFired(timer)))

    def _patience_left(self, timer: str) -> float:
        """Seconds for the client whose task's deadline this is, where the recipe sets none."""
        client = timer_client(timer)
        if client not in self._given or self.recipe.schedule.task_timeout is not None:
            return 0.0
        if not self._took:
            return LEAST_PATIENCE
        usual = max(LEAST_PATIENCE, PATIENCE * median_low(self._took.values()))
        return self._given[client] + usual - self._clock()

    # ------------------------------------------------------------ who is here

    def _member(self, ready: Ready) -> Member | Unfit:
        """The server's record of this client; or why it cannot take part, which is no reason to end the run."""
        self._bases[ready.client] = ready.facts.base
        try:
            return member_of(self.recipe, self.config, ready.client, ready.facts)
        except (BudgetError, UpdateRefused) as error:
            return Unfit(client=ready.client, reason=str(error))

    def _welcome(self, member: Member) -> None:
        known = self.server.context.members.get(member.name)
        was_lowered = known is not None and (known.rate < member.rate or known.largest > 0)
        if known is not None and was_lowered and known.device.memory >= member.device.memory:
            member = known  # it ran out of memory: a restart does not give it more
        self.server.welcome(member)

    def _join(self, client: str) -> None:
        self.void(client)
        if self.presence.mark_joined(
            client
        ):  # it was known before this server process began, and lost its task with the old
            self.carry_out(self.server.handle(ClientLeft(client)))
        member = self.server.context.members[client]
        self.log(Joined(client=client, rate=member.rate, samples=member.samples, memory=member.device.memory))
        self.server.orders.caches.claim(client, self._bases.get(client, {}))
        self.carry_out(self.server.handle(ClientJoined(client)))

    def void(self, client: str) -> None:
        """Whatever the client was given is not its task any more. Called by the network's threads too."""
        self.port.withdraw(client)
        self.transfers.void(client)

    def _left(self, client: str) -> None:
        self.log(Left(client=client, reason=f"silent for {self.recipe.fleet.heartbeat_seconds:g} s"))
        self.carry_out(self.server.handle(ClientLeft(client)))

    def _returned(self, client: str) -> None:
        """Heard again after a silence, the same process. With a task in hand it is at work; without, it wants one."""
        if client in self.server.context.members and client not in self.server.coordinator.in_flight():
            self._join(client)

    def _check_anybody_is_left(self) -> None:
        members = self.server.context.members
        if members and members.keys() <= self.exclusions.keys() and self.finished is None:
            raise self.nobody_able()

    # ------------------------------------------------------------ answers

    def _answer(self, answer: Answered) -> None:
        client, task = answer.client, answer.task
        if client in self._given:
            self._took[client] = self._clock() - self._given.pop(client)
        if answer.notice is None:
            self._failed(answer)
            return
        try:
            update = self.transfers.take(client, answer.notice, read_update)
        except UpdateRefused as refusal:
            self.log(Refused(client=client, task=task, reason=str(refusal)))
            self.carry_out(self.server.handle(UpdateRejected(client, task, str(refusal))))
            return
        measured = measured_numbers(answer.numbers) or {}
        self.log(Arrived(client=client, task=task, bytes=answer.notice.size, measured=measured))
        self.carry_out(self.server.receive(client, update))
        ticket = self.server.coordinator.in_flight().get(client)
        if ticket is not None and ticket.task == task:  # its one answer was to another task: it will not give a second
            self._failed(Answered(client, task, None, "it answered with an update of another task"))

    def _failed(self, answer: Answered) -> None:
        numbers = measured_numbers(answer.numbers) or {}
        self.log(Failed(client=answer.client, task=answer.task, reason=answer.failure, measured=numbers))
        if answer.out_of_memory:
            self.log(self.server.lower(answer.client, answer.task))
        if answer.cache_miss:
            self.server.orders.caches.forget(answer.client)
        self.carry_out(self.server.handle(TaskFailed(answer.client, answer.task, answer.failure)))

    # ------------------------------------------------------------ what the server wants done

    def send(self, order: Order) -> None:
        limit = make_contract(self.config, order).wire_upload() + ALLOWANCE
        notice = self.transfers.put(order.client, order.task, partial(self.server.orders.write_task, order), limit)
        self.log(self.server.dispatched(order, notice.size))
        self._given[order.client] = self._clock()
        self.port.offer(order.client, notice)

    def start_timer(self, timer: str, seconds: float) -> None:
        self._timers.start(timer, seconds)

    def last_events(self) -> list[Event]:
        counts = self.transfers.traffic
        return [Traffic(client=client, **counts.of(client)) for client in self.server.context.members]


def read_update(path: Path) -> Buffer:
    """The bytes; those of a large update mapped, because reading them would take as much memory again."""
    return mapped(path) if path.stat().st_size > MAPPED_BYTES else path.read_bytes()


def _member_dict(member: Member) -> dict[str, Any]:
    return {**asdict(member), "device": member.device.model_dump(mode="json")}


def _member(values: Mapping[str, Any]) -> Member:
    part = values.get("part")
    own = {"device": Device.model_validate(values["device"]), "part": part and Part(**part)}
    return Member(**{**values, **own, "texts": tuple(values.get("texts", (0, 0)))})
