"""The coordinator written plainly: every decision looks at every client. The judge of the quick one.

Simulation and network are two drivers of this same object. It follows Algorithm 2 of the paper, turned inside
out: instead of blocking in a loop until an update comes, it is told what happened and says what to do next.

    for q = 1 to Q                                    version, the round's number
      C_q ← available clients                         _Client: who is here, who is expected
      all workers in parallel: client-training(w, q)  Dispatch
      while cnt < μN: receive an update               UpdateArrived → Merge, until the trigger is met
      while t_clk < T_timeout: receive an update      StartTimer, further Merges, TimerFired
      w ← w − Σ γ̃ Δ                                   Aggregate

The paper's two inner loops can block for ever; here they cannot. N counts only clients that reported in this
round or can still be expected to, so the threshold never exceeds what can arrive, and a buffer nobody can add to
is aggregated at once. A straggler is never interrupted: its update is merged when it comes, with its staleness.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, assert_never

from cos2p.server.protocol import (
    Aggregate,
    ClientJoined,
    ClientLeft,
    Decision,
    Dispatch,
    Enough,
    Finish,
    Merge,
    News,
    StartTimer,
    Stop,
    TaskFailed,
    TimerFired,
    UpdateArrived,
    UpdateRejected,
)
from cos2p.server.rules import Rules
from cos2p.tracking.event_kinds import Dropped, Excluded


@dataclass
class _Client:
    here: bool = True
    """ClientJoined, and not known to be gone."""
    excluded: bool = False
    overdue: bool = False
    """Its open task has passed the deadline."""
    cycle: int = 0
    attempts: int = 0
    fruitless: int = 0
    """Tasks since its last good update that failed, were refused or were given up."""
    failures: int = 0
    """Those of them that failed or were refused since it joined."""
    ticket: Dispatch | None = None

    @property
    def gets_tasks(self) -> bool:
        return self.here and not self.excluded

    def close_ticket(self, *, good: bool) -> None:
        self.ticket = None
        self.overdue = False
        self.fruitless = 0 if good else self.fruitless + 1
        if good:
            self.failures = 0

    def to_dict(self) -> dict[str, Any]:
        # Not asdict: it copies deeply, ten times slower, and a checkpoint may be taken at every event.
        return {**vars(self), "ticket": None if self.ticket is None else {**vars(self.ticket)}}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> _Client:
        ticket = state["ticket"]
        return cls(**{**state, "ticket": None if ticket is None else Dispatch(**ticket)})


class Coordinator:
    """Give it what happens, carry out what it answers, in order.

    >>> from cos2p.aggregation.triggers import Trigger
    >>> coordinator = Coordinator(Rules(Trigger.synchronous(), "at-aggregation", rounds=1))
    >>> coordinator.handle(ClientJoined("pi-1"))
    [Dispatch(client='pi-1', task='pi-1#0', version=0, cycle=0, attempt=0)]
    >>> for action in coordinator.handle(UpdateArrived("pi-1", "pi-1#0")):
    ...     print(action)
    Merge(client='pi-1', task='pi-1#0', version=0, staleness=0)
    Aggregate(round=0, version=1, clients=('pi-1',), updates=1)
    Finish(reason='rounds')
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.version = 0
        """Aggregations so far; also the number of the round under way, from 0."""
        self.merged = 0
        """Updates merged since the start of the run."""
        self.finished: str | None = None
        """Why the run is over, or None while it goes on."""
        self.enough: str | None = None
        self._reported_early = False
        self._clients: dict[str, _Client] = {}
        self._reported: Counter[str] = Counter()  # updates of the round under way, by client
        self._listening = False  # the threshold is met and T_clk runs

    # ------------------------------------------------------------ what the driver asks

    def handle(self, event: News) -> list[Decision]:
        """Take note of the event, aggregate if that is now due, give tasks to those without one."""
        if self.finished is not None:
            return []
        actions = self._note(event)
        actions += self._close_round(event)
        actions += self._hand_out_tasks()
        return actions

    def ticket(self, client: str, task: str) -> Dispatch | None:
        """The open task of that name; None if this client was never given it, or it is answered or given up."""
        record = self._clients.get(client)
        if record is None or record.ticket is None or record.ticket.task != task:
            return None
        return record.ticket

    def in_flight(self) -> dict[str, Dispatch]:
        """Every open task by its client, those of absent and overdue clients included."""
        return {name: record.ticket for name, record in self._clients.items() if record.ticket is not None}

    def in_flight_versions(self) -> dict[int, int]:
        """How many open tasks were cut from each version: the versions that may still be asked for."""
        return dict(Counter(ticket.version for ticket in self.in_flight().values()))

    def pending_timers(self) -> list[StartTimer]:
        """The timers that still matter, for a driver whose clock did not survive a restart."""
        timers = [StartTimer(self._listening_timer, self.rules.trigger.t_clk)] if self._listening else []
        if self.rules.task_timeout is not None:
            timers += [
                StartTimer(_deadline(record.ticket.task), self.rules.task_timeout)
                for record in self._clients.values()
                if record.ticket is not None and not record.overdue
            ]
        return timers

    @property
    def stalled(self) -> bool:
        """Nobody is waited for: only a client that joins, or answers after all, moves the run on."""
        return self.finished is None and not self._any_expected()

    @property
    def in_final_round(self) -> bool:
        """Whether the round under way is the last one, of a run that ends with one of its own kind."""
        rules = self.rules
        if not rules.final_updates:
            return False
        if self._reported_early:
            return True
        when_it_began = self.merged - self._reported.total()
        if rules.max_updates is not None and when_it_began >= rules.max_updates - rules.final_updates:
            return True
        return self.version + 1 == rules.rounds

    # ------------------------------------------------------------ what the events mean

    def _note(self, event: News) -> list[Decision]:
        match event:
            case ClientJoined(client):
                self._joined(client)
            case ClientLeft(client) if client in self._clients:
                self._clients[client].here = False
            case UpdateArrived(client, task):
                return [self._arrived(client, task)]
            case UpdateRejected(client, task, reason) if self.ticket(client, task):
                self._clients[client].here = True  # whoever sends something is here, even if thought to be gone
                return self._came_to_nothing(client, f"refused: {reason}")
            case TaskFailed(client, task, reason) if self.ticket(client, task):
                return self._came_to_nothing(client, f"failed: {reason}")
            case TimerFired(timer):
                self._note_deadline(timer)
            case Enough(reason) if self.rules.final_updates and not self.in_final_round:
                self.enough = self.enough or reason
            case ClientLeft() | UpdateRejected() | TaskFailed() | Stop() | Enough():
                pass  # of no open task or unknown client; the run's end is decided in _close_round
            case _:
                assert_never(event)
        return []

    def _joined(self, client: str) -> None:
        """Whoever joins has nothing in hand, so a task it was given before is given up."""
        record = self._clients.setdefault(client, _Client())
        if record.ticket is not None:
            record.close_ticket(good=False)
        record.here = True
        record.excluded = False
        record.failures = 0

    def _arrived(self, client: str, task: str) -> Decision:
        ticket = self.ticket(client, task)
        if ticket is None:
            return Dropped(client=client, task=task, reason=self._why_no_ticket(client, task))
        record = self._clients[client]
        record.close_ticket(good=True)
        record.here = True
        staleness = self.version - ticket.version
        if self.in_final_round and staleness:
            reason = "too late: the final round is under way, and reports statistics of the model as it is"
            return Dropped(client=client, task=task, reason=reason)
        record.cycle += 1
        self._reported[client] += 1
        self.merged += 1
        return Merge(client, task, ticket.version, staleness)

    def _came_to_nothing(self, client: str, reason: str) -> list[Decision]:
        record = self._clients[client]
        record.close_ticket(good=False)
        record.failures += 1
        if record.failures < self.rules.max_failures:
            return []
        record.excluded = True
        why = f"{record.failures} tasks in a row came to nothing; the last one {reason}"
        return [Excluded(client=client, task="", reason=why)]

    def _note_deadline(self, timer: str) -> None:
        """An overdue client is not waited for; its ticket stays open, so a late answer is still merged."""
        for record in self._clients.values():
            if record.ticket is not None and timer == _deadline(record.ticket.task):
                record.overdue = True

    def _why_no_ticket(self, client: str, task: str) -> str:
        given = self._clients[client].attempts if client in self._clients else 0
        if any(task == _task_name(client, attempt) for attempt in range(given)):
            return "closed task: answered before, or given up"
        return "unknown task: never given to this client"

    # ------------------------------------------------------------ Algorithm 2: when the round ends

    def _expected(self) -> list[str]:
        """Who is waited for: at work, or about to get a task.

        A client whose tasks keep coming to nothing still gets new ones, but is not waited for until one succeeds:
        one that restarts in the middle of every task would otherwise hold up a synchronous round for ever.
        """
        return [
            name
            for name, record in self._clients.items()
            if record.gets_tasks
            and not record.overdue
            and record.fruitless < self.rules.max_failures
            and not self._waits(name)
        ]

    def _waits(self, client: str) -> bool:
        """It has done its part of this round and gets its next task with the next version."""
        return self.rules.redispatch == "at-aggregation" and client in self._reported

    def _left_to_give(self) -> float:
        """Tasks that may still be given out before the finale."""
        rules = self.rules
        if rules.final_updates and self.enough and not self.in_final_round:
            return 0
        if not rules.final_updates or rules.max_updates is None or self.in_final_round:
            return float("inf")
        at_work = [r for r in self._clients.values() if r.gets_tasks and r.ticket is not None and not r.overdue]
        return max(0, rules.max_updates - rules.final_updates - self.merged - len(at_work))

    def _at_work_and_ready(self) -> tuple[set[str], set[str]]:
        expected = set(self._expected())
        at_work = {name for name in expected if self._clients[name].ticket is not None}
        return at_work, expected - at_work

    def _any_expected(self) -> bool:
        at_work, ready = self._at_work_and_ready()
        return bool(at_work) or min(len(ready), self._left_to_give()) > 0

    def _threshold_met(self) -> bool:
        """cnt ≥ ⌈μN⌉, with N the clients that reported in this round or can be expected to."""
        at_work, ready = self._at_work_and_ready()
        new = int(min(len(ready - self._reported.keys()), self._left_to_give()))
        clients = len(self._reported.keys() | at_work) + new
        return self.rules.trigger.met(updates=self._reported.total(), reporters=len(self._reported), clients=clients)

    def _round_is_over(self, event: News) -> bool:
        if not self._any_expected():
            return True
        if self._listening:
            return event == TimerFired(self._listening_timer)
        return self._threshold_met() and self.rules.trigger.t_clk == 0

    def _close_round(self, event: News) -> list[Decision]:
        ending, last = self._run_is_over(event), self.in_final_round
        actions: list[Decision] = []
        if self._reported and (ending is not None or self._round_is_over(event)):
            actions.append(self._aggregate())
        elif self._reported and not self._listening and self._threshold_met():
            self._listening = True
            actions.append(StartTimer(self._listening_timer, self.rules.trigger.t_clk))
        if ending is None and self.version == self.rules.rounds:
            ending = "rounds"
        if ending is None and last and any(isinstance(action, Aggregate) for action in actions):
            ending = self.enough or "max_updates"
        if (
            ending is None
            and self.enough
            and not self.in_final_round
            and not self._reported
            and not self._any_expected()
        ):
            self._reported_early = True
            for record in self._clients.values():
                if record.ticket is not None:
                    record.close_ticket(good=False)
            ending = None if self._any_expected() else self.enough
        if ending is not None:
            actions.append(self._finish(ending))
        return actions

    def _run_is_over(self, event: News) -> str | None:
        """A reason to end the run whatever the state of the round, whose buffer is then aggregated as it is."""
        if isinstance(event, Stop) or (isinstance(event, Enough) and not self.rules.final_updates):
            return event.reason
        return "max_updates" if self.merged == self.rules.max_updates and not self.rules.final_updates else None

    def _aggregate(self) -> Aggregate:
        action = Aggregate(self.version, self.version + 1, tuple(self._reported), self._reported.total())
        self.version += 1
        self._reported.clear()
        self._listening = False
        return action

    def _finish(self, reason: str) -> Finish:
        self.finished = reason
        for record in self._clients.values():
            record.ticket = None
        return Finish(reason)

    # ------------------------------------------------------------ Algorithm 2: all workers in parallel

    def _hand_out_tasks(self) -> list[Decision]:
        """Whoever has no task, and does not wait for the next version, gets one from the current version."""
        if self.finished is not None:
            return []
        actions: list[Decision] = []
        for client, record in self._clients.items():
            if record.ticket is not None or not record.gets_tasks or self._waits(client) or not self._left_to_give():
                continue
            task = _task_name(client, record.attempts)
            record.ticket = Dispatch(client, task, self.version, record.cycle, record.attempts)
            record.attempts += 1
            actions.append(record.ticket)
            if self.rules.task_timeout is not None:
                actions.append(StartTimer(_deadline(task), self.rules.task_timeout))
        return actions

    @property
    def _listening_timer(self) -> str:
        return f"round {self.version}"

    # ------------------------------------------------------------ checkpoint

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values; clients as a list, because their order is the order of dispatch."""
        return {
            "rules": asdict(self.rules),
            "version": self.version,
            "merged": self.merged,
            "finished": self.finished,
            "clients": [{"name": name, **record.to_dict()} for name, record in self._clients.items()],
            "reported": [[client, updates] for client, updates in self._reported.items()],
            "listening": self._listening,
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Coordinator:
        """The coordinator as it was: the same events from here on give the same actions."""
        coordinator = cls(Rules.from_dict(state["rules"]))
        coordinator.version = state["version"]
        coordinator.merged = state["merged"]
        coordinator.finished = state["finished"]
        for client in state["clients"]:
            record = {field: value for field, value in client.items() if field != "name"}
            coordinator._clients[client["name"]] = _Client.from_dict(record)
        coordinator._reported = Counter(dict(state["reported"]))
        coordinator._listening = state["listening"]
        return coordinator


def _task_name(client: str, attempt: int) -> str:
    return f"{client}#{attempt}"


def _deadline(task: str) -> str:
    return f"deadline of {task}"
