"""One run on a real fleet: what happens on the network becomes events for the server, its effects become tasks.

The counterpart of `runtime.simulation`: the same server, the wall's clock instead of a virtual one. It knows nothing of
NVFlare; `Port` is all it asks of a network, so it can be driven by hand in a test. Network threads call the methods of
the first section, which only take a note; everything else happens in the one thread that calls `run`.

Liveness. A client beats while it works, so a task may take hours: slow is not dead. One that is silent for
`fleet.heartbeat_seconds` has left; should its answer come all the same, it is merged. `schedule.task_timeout` is the
coordinator's own.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from cos2p.errors import BudgetError, TrainingError, UpdateRefused
from cos2p.fleet.join_request import JoinRequest
from cos2p.fleet.server.evaluation import Evaluator
from cos2p.fleet.server.inbox import Answered, Asked, Happening, Ready
from cos2p.fleet.server.judge import Judge
from cos2p.fleet.server.members import lowered_rate, member_of
from cos2p.fleet.server.presence import Presence
from cos2p.fleet.server.timers import Timers
from cos2p.fleet.server.transfers import Transfers
from cos2p.fleet.spool import Notice
from cos2p.messages import Order
from cos2p.methods import build_method, make_trainer
from cos2p.methods.base import Member, RunContext
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.recipe import Recipe
from cos2p.runtime.decisions import ClientJoined, ClientLeft, Stop, TaskFailed, TimerFired
from cos2p.runtime.server import Done, Effect, NewVersion, Send, Server, Timer
from cos2p.runtime.world import first_weights
from cos2p.tracking.event_kinds import (
    Arrived,
    Benched,
    Evaluated,
    Event,
    Failed,
    Finished,
    Joined,
    Left,
    Lowered,
    Refused,
    Traffic,
    Unevaluated,
    Unfit,
)
from cos2p.tracking.events import Listener
from cos2p.tracking.figures import RunFigures

ALLOWANCE = 2**20
"""Bytes an update may have beyond its tensors: names, shapes, the report."""


class Port(Protocol):
    """What the driver asks of a network."""

    def offer(self, client: str, notice: Notice) -> None:
        """Tell the client that a task is ready to be fetched."""

    def withdraw(self, client: str) -> None:
        """The client's task is void; it need not be told."""


class Driver:
    def __init__(
        self,
        recipe: Recipe,
        config: ModelConfig,
        port: Port,
        transfers: Transfers,
        evaluator: Evaluator,
        tell: Listener,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.recipe, self.config, self.port, self.transfers = recipe, config, port, transfers
        self.judge, self._tell = Judge(evaluator, self._newest), tell
        self.server: Server
        self.figures = RunFigures()
        self.begun = False
        """Whether there is a server yet: a method is made for the members it begins with."""
        self.finished: str | None = None
        self.paused = False
        self.started_at = time.time()
        """The wall's clock at virtual second 0; survives a checkpoint, so an outage counts."""
        self.roll = Presence(recipe.fleet.heartbeat_seconds, clock)
        self._happenings: queue.SimpleQueue[Happening] = queue.SimpleQueue()
        self._timers = Timers(clock)
        self._benched: dict[str, str] = {}

    def begin(self, members: Iterable[Member]) -> None:
        """Make the server for those who are here now. More may come."""
        recipe, known = self.recipe, {member.name: member for member in members}
        context = RunContext(
            self.config, known, recipe.training, recipe.schedule, recipe.seed, recipe.fleet.enforce_memory
        )
        self.server = Server(context, build_method(recipe.method, context), first_weights(recipe, self.config))
        self.begun = True

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return max(0.0, time.time() - self.started_at)

    # ------------------------------------------------------------ called by the network's threads

    def hello(self, client: str, session: str) -> None:
        """A client process began: whatever it was given before is void."""
        self.roll.hello(client, session)

    def ready(self, client: str, session: str, facts: JoinRequest) -> None:
        if self.roll.is_current(client, session):
            self._happenings.put(Ready(client, facts))

    def beat(self, client: str, session: str | None = None) -> None:
        self.roll.heard(client, session)

    def answered(self, answer: Answered) -> None:
        self.roll.heard(answer.client)
        self._happenings.put(answer)

    def unfit(self, client: str, reason: str) -> None:
        """A device cannot take part: its data are missing or do not fit the model."""
        self._happenings.put(Unfit(client=client, reason=reason))

    def refused(self, client: str, task: str, reason: str) -> None:
        """Something was sent that is not let in; nothing changes but the log."""
        self._happenings.put(Refused(client=client, task=task, reason=reason))

    def pause(self) -> None:
        self._happenings.put(Asked())

    def end(self, reason: str) -> None:
        """Aggregate what has come and finish."""
        self._happenings.put(Asked(reason))

    # ------------------------------------------------------------ the loop

    def restored(self) -> None:
        """After a checkpoint was loaded: nobody's process is known yet, timers begin anew."""
        self.roll.restore(self.server.context.members)
        for timer in self.server.coordinator.pending_timers():
            self._timers.start(timer.timer, timer.seconds)

    def gather(
        self, expected: set[str], seconds: float, begun: Callable[[], None], stopped: Callable[[], bool]
    ) -> None:
        """Wait for those who are expected, but not for ever, so that a run begins with the fleet and not with one.

        At least one there must be; TrainingError if none of those who are expected can take part. `begun` is called
        when it begins.
        """
        deadline = time.monotonic() + seconds
        waiting: dict[str, Member] = {}
        unfit: dict[str, Unfit] = {}
        while not (self.paused or stopped()):
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
            if isinstance(happening, Unfit):
                unfit[happening.client] = happening
            elif isinstance(happening, Asked):
                self.paused = True
        self.begin(waiting[name] for name in sorted(waiting))
        self.started_at = time.time()
        begun()
        for event in unfit.values():
            self._log(event)
        for client in sorted(waiting):
            self._join(client)

    def run(self, stopped: Callable[[], bool], between: Callable[[], None]) -> None:
        """Until the server is done, `stopped` says so or the user pauses; `between` is called between two events."""
        if self.recipe.schedule.virtual_seconds is not None:
            self._timers.start("end of time", self.recipe.schedule.virtual_seconds - self.now)
        while self.finished is None and not self.paused and not stopped():
            if (happening := self._next()) is not None:
                self._happen(happening)
            for timer in self._timers.due():
                self._ring(timer)
            for client in self.roll.silent():
                self._left(client)
            for client in self.roll.returned():
                self._returned(client)
            self._collect_evaluation()
            self._check_anybody_is_left()
            between()
        if self.finished is not None:
            self._finish()

    def _next(self) -> Happening | None:
        try:
            return self._happenings.get(timeout=min(0.2, self._timers.seconds_to_next()))
        except queue.Empty:
            return None

    def _happen(self, happening: Happening) -> None:
        if isinstance(happening, Ready):
            member = self._member(happening)
            if isinstance(member, Unfit):
                self._log(member)
                if happening.client in self.server.context.members:  # its process is another now, and has no task
                    self._carry_out(self.server.handle(ClientLeft(happening.client)))
            else:
                self._welcome(member)
                self._join(happening.client)
        elif isinstance(happening, Answered):
            self._answer(happening)
        elif isinstance(happening, Event):
            self._log(happening)
        elif happening.end:
            self._carry_out(self.server.handle(Stop(happening.end)))
        else:
            self.paused = True

    def _ring(self, timer: str) -> None:
        if timer == "end of time":
            self._carry_out(self.server.handle(Stop("virtual time")))
        else:
            self._carry_out(self.server.handle(TimerFired(timer)))

    # ------------------------------------------------------------ who is here

    def _member(self, ready: Ready) -> Member | Unfit:
        """Who this client is to the server; or why it cannot take part, which is no reason to end the run."""
        try:
            return member_of(self.recipe, self.config, ready.client, ready.facts)
        except BudgetError as error:
            return Unfit(client=ready.client, reason=str(error))

    def _welcome(self, member: Member) -> None:
        known = self.server.context.members.get(member.name)
        if known is not None and known.rate < member.rate and known.device.memory >= member.device.memory:
            member = known  # lowered after it ran out of memory: a restart does not give it more
        self.server.welcome(member)

    def _join(self, client: str) -> None:
        self.port.withdraw(client)
        self.transfers.void(client)
        self._benched.pop(client, None)
        if self.roll.rejoins(client):  # it was known before this server process began, and lost its task with the old
            self._carry_out(self.server.handle(ClientLeft(client)))
        member = self.server.context.members[client]
        self._log(Joined(client=client, rate=member.rate, samples=member.samples, memory=member.device.memory))
        self._carry_out(self.server.handle(ClientJoined(client)))

    def _left(self, client: str) -> None:
        self._log(Left(client=client, reason=f"silent for {self.recipe.fleet.heartbeat_seconds:g} s"))
        self._carry_out(self.server.handle(ClientLeft(client)))

    def _returned(self, client: str) -> None:
        """Heard again after a silence, the same process. With a task in hand it is at work; without, it wants one."""
        if client in self.server.context.members and client not in self.server.coordinator.in_flight():
            self._join(client)

    def _check_anybody_is_left(self) -> None:
        members = self.server.context.members
        if members and members.keys() <= self._benched.keys() and self.finished is None:
            client, reason = list(self._benched.items())[-1]
            raise TrainingError(f"no device is able to go on; {client}: {reason}")

    # ------------------------------------------------------------ answers

    def _answer(self, answer: Answered) -> None:
        client, task = answer.client, answer.task
        if answer.notice is None:
            self._failed(answer)
            return
        try:
            data = self.transfers.take(client, answer.notice)
        except UpdateRefused as refusal:
            self._log(Refused(client=client, task=task, reason=str(refusal)))
            self._carry_out(self.server.handle(TaskFailed(client, task, str(refusal))))
            return
        self._log(Arrived(client=client, task=task, bytes=len(data), measured=dict(answer.numbers or {})))
        self._carry_out(self.server.receive(client, data))
        ticket = self.server.coordinator.in_flight().get(client)
        if ticket is not None and ticket.task == task:  # its one answer was to another task: it will not give a second
            self._failed(Answered(client, task, None, "it answered with an update of another task"))

    def _failed(self, answer: Answered) -> None:
        numbers = dict(answer.numbers or {})
        self._log(Failed(client=answer.client, task=answer.task, reason=answer.failure, measured=numbers))
        if answer.out_of_memory:
            self._lower(answer.client)
        self._carry_out(self.server.handle(TaskFailed(answer.client, answer.task, answer.failure)))

    def _lower(self, client: str) -> None:
        """The task did not fit: the next one is smaller, as the ledger says."""
        member = self.server.context.members[client]
        rate = lowered_rate(self.config, member, self.recipe)
        self._log(Lowered(client=client, was=member.rate, rate=rate, memory=member.device.memory))
        self.server.welcome(replace(member, rate=rate))

    # ------------------------------------------------------------ effects

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._send(effect.order)
            elif isinstance(effect, Timer):
                self._timers.start(effect.timer, effect.seconds)
            elif isinstance(effect, Event):
                self._log(effect)
                if isinstance(effect, Benched):
                    self._benched[effect.client] = effect.reason
            elif isinstance(effect, NewVersion):
                self._new_version(effect)
            elif isinstance(effect, Done):
                self.finished = effect.reason

    def _send(self, order: Order) -> None:
        data = self.server.task(order).to_bytes()
        extras = sum(tensor.nbytes for tensor in self.server.extras.get(order.task, {}).values())
        limit = make_trainer(self.config, order).upload() + extras + ALLOWANCE
        notice = self.transfers.put(order.client, order.task, data, limit)
        self._log(self.server.dispatched(order, len(data)))
        self.port.offer(order.client, notice)

    def _new_version(self, effect: NewVersion) -> None:
        if effect.version % self.recipe.schedule.evaluate_every == 0:
            self.judge.ask()

    # ------------------------------------------------------------ evaluation

    def _newest(self) -> tuple[int, Weights]:
        """As in the simulation: a method may mask or scale the model before it is judged."""
        return self.server.versions.current, self.server.method.evaluated_weights(self.server.weights)

    def _collect_evaluation(self) -> None:
        verdict = self.judge.verdict()
        if verdict is None:
            return
        if verdict.scores is None:
            self._log(Unevaluated(version=verdict.version, reason="the evaluating process was killed"))
            return
        self._log(Evaluated(version=verdict.version, **verdict.scores))
        if self.figures.out_of_patience(self.recipe.schedule.patience):
            self._carry_out(self.server.handle(Stop("no better validation score for a while")))

    def _finish(self) -> None:
        assert self.finished is not None
        end = self.now  # the last evaluation takes its time; nobody trains any more
        version, scores = self.judge.last()
        for client in self.server.context.members:
            self._log(Traffic(client=client, **self.transfers.traffic.of(client)), end)
        self._log(Finished(reason=self.finished, version=version, **scores), end)

    # ------------------------------------------------------------ small things

    def _log(self, event: Event, t: float | None = None) -> None:
        event = event.at(self.now if t is None else t)
        self.figures(event)
        self._tell(event)
