"""The server's decisions as a state machine: `handle(news) -> decisions`, without clock, socket, file or tensor.

Simulation and network are two drivers of this same object. It follows Algorithm 2 of the paper, turned inside
out: instead of blocking in a loop until an update comes, it takes one piece of news and returns what to do next.

    for q = 1 to Q                                    version, the round's number
      C_q ← available clients                         ClientRecord: who is here, who is expected
      all workers in parallel: client-training(w, q)  Dispatch
      while cnt < μN: receive an update               UpdateArrived → Merge, until the trigger is met
      while t_clk < T_timeout: receive an update      StartTimer, further Merges, TimerFired
      w ← w − Σ γ̃ Δ                                   Aggregate

The paper's two inner loops can block for ever; here they cannot. N counts only clients that reported in this
round or can still be expected to, so the threshold never exceeds what can arrive, and a buffer nobody can add to
is aggregated at once. A straggler is never interrupted: its update is merged when it comes, with its staleness.

Where the rules let only some clients take part, N counts those who do: they reported in this round, are at work, or
fill the places that are free. No event looks at all clients: what the decisions need is counted along (`Census`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from typing_extensions import assert_never

from cos2p.seeding import derive_seed
from cos2p.server.census import (
    BUSY,
    HOPEFUL,
    NEW,
    PRESENT,
    READY,
    WAITED,
    Census,
    ClientRecord,
    decode_roster,
    encode_roster,
)
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


class Coordinator:
    """Give it what happens, carry out what it answers, in order.

    `roster` lists the clients that are known beforehand, if any: a checkpoint then names them by their place in it.

    >>> from cos2p.aggregation.triggers import Trigger
    >>> coordinator = Coordinator(Rules(Trigger.synchronous(), "at-aggregation", rounds=1))
    >>> coordinator.handle(ClientJoined("pi-1"))
    [Dispatch(client='pi-1', task='pi-1#0', version=0, cycle=0, attempt=0)]
    >>> for decision in coordinator.handle(UpdateArrived("pi-1", "pi-1#0")):
    ...     print(decision)
    Merge(client='pi-1', task='pi-1#0', version=0, staleness=0)
    Aggregate(round=0, version=1, clients=('pi-1',), updates=1)
    Finish(reason='rounds')
    """

    def __init__(self, rules: Rules, roster: Sequence[str] = ()) -> None:
        self.rules = rules
        self.version = 0
        """Aggregations so far; also the number of the round under way, from 0."""
        self.merged = 0
        """Updates merged since the start of the run."""
        self.enough: str | None = None
        """Why training is over before its time, in a run that has a last round still to come."""
        self.finished: str | None = None
        """Why the run is over, or None while it goes on."""
        self._roster = roster
        self._clients: dict[str, ClientRecord] = {}
        self._by_number: list[ClientRecord] = []
        self._open: dict[str, Dispatch] = {}
        self._versions: Counter[int] = Counter()  # how many open tasks were cut from each version
        self._deadlines: dict[str, ClientRecord] = {}
        self._reported: Counter[str] = Counter()  # updates of the round under way, by client
        self._updates = 0  # their sum
        self._listening = False  # the threshold is met and T_clk runs
        self._census = Census()
        self._drawn = 0
        """Draws so far, of those who take part."""
        self.in_final_round = self._final_round_is_due()
        """Whether the round under way is the last one, of a run that ends with one of its own kind."""

    # ------------------------------------------------------------ what the driver asks

    def handle(self, news: News) -> list[Decision]:
        """Take note of the news, aggregate if that is now due, give tasks to those without one."""
        if self.finished is not None:
            return []
        return [*self._note(news), *self._close_round(news), *self._hand_out_tasks()]

    def ticket(self, client: str, task: str) -> Dispatch | None:
        """The open task of that name; None if this client was never given it, or it is answered or given up."""
        ticket = self._open.get(client)
        return ticket if ticket is not None and ticket.task == task else None

    def was_closed(self, client: str, task: str) -> bool:
        """Whether this client was given that task and it is answered or given up."""
        given = self._clients[client].attempts if client in self._clients else 0
        return self.ticket(client, task) is None and any(task == _task_name(client, n) for n in range(given))

    def staleness(self, ticket: Dispatch) -> int:
        return self.version - ticket.version

    def too_late(self, ticket: Dispatch) -> str:
        """Why an answer to this task would be dropped now, or nothing: it trained, and training is over."""
        if self.in_final_round and self.staleness(ticket) > 0:
            return "too late: the final round is under way, and reports statistics of the model as it is"
        return ""

    def in_flight(self) -> Mapping[str, Dispatch]:
        """Every open task by its client, those of absent and overdue clients included. Not to be changed."""
        return self._open

    def in_flight_versions(self) -> Mapping[int, int]:
        """How many open tasks were cut from each version: the versions that may still be asked for."""
        return self._versions

    def is_excluded(self, client: str) -> bool:
        return client in self._clients and self._clients[client].excluded

    def exclude(self, client: str, reason: str) -> list[Decision]:
        """Give a client no more tasks. Its open one is given up: an answer to it is not heard."""
        record = self._clients.get(client)
        if record is None or record.excluded:
            return []
        record.excluded = True
        if record.ticket is not None:
            self._close(record, good=False)
        self._recount(record)
        return [Excluded(client=client, task="", reason=reason)]

    def pending_timers(self) -> list[StartTimer]:
        """The timers that still matter, for a driver whose clock did not survive a restart."""
        timers = [StartTimer(self._listening_timer, self.rules.trigger.t_clk)] if self._listening else []
        if self.rules.task_timeout is not None:
            waited = sorted((client.number, timer) for timer, client in self._deadlines.items() if not client.overdue)
            timers += [StartTimer(timer, self.rules.task_timeout) for _, timer in waited]
        return timers

    @property
    def stalled(self) -> bool:
        """Nobody is waited for: only a client that joins, or answers after all, moves the run on."""
        return self.finished is None and not self._expected()

    # ------------------------------------------------------------ what the news mean

    def _note(self, news: News) -> list[Decision]:
        match news:
            case ClientJoined(client):
                self._joined(client)
            case ClientLeft(client) if client in self._clients:
                self._clients[client].here = False
                self._recount(self._clients[client])
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
                assert_never(news)
        return []

    def _joined(self, client: str) -> None:
        """Whoever joins has nothing in hand, so a task it was given before is given up."""
        record = self._clients.get(client) or self._enrol(client)
        if record.ticket is not None:
            self._close(record, good=False)
        record.here = True
        record.excluded = False
        record.failures = 0
        self._recount(record)

    def _enrol(self, client: str) -> ClientRecord:
        record = ClientRecord(client, len(self._by_number))
        self._clients[client] = record
        self._by_number.append(record)
        return record

    def _arrived(self, client: str, task: str) -> Decision:
        ticket = self.ticket(client, task)
        if ticket is None:
            return Dropped(client=client, task=task, reason=self._why_no_ticket(client, task))
        record = self._clients[client]
        self._close(record, good=True)
        record.here = True
        if late := self.too_late(ticket):
            self._recount(record)
            return Dropped(client=client, task=task, reason=late)
        record.cycle += 1
        self._reported[client] += 1
        self._updates += 1
        self.merged += 1
        self._recount(record)
        return Merge(client, task, ticket.version, self.staleness(ticket))

    def _came_to_nothing(self, client: str, reason: str) -> list[Decision]:
        record = self._clients[client]
        self._close(record, good=False)
        record.failures += 1
        record.excluded = record.failures >= self.rules.max_failures
        self._recount(record)
        if not record.excluded:
            return []
        why = f"{record.failures} tasks in a row came to nothing; the last one {reason}"
        return [Excluded(client=client, task="", reason=why)]

    def _note_deadline(self, timer: str) -> None:
        """An overdue client is not waited for; its ticket stays open, so a late answer is still merged."""
        record = self._deadlines.get(timer)
        if record is not None:
            record.overdue = True
            self._recount(record)

    def _why_no_ticket(self, client: str, task: str) -> str:
        if self.was_closed(client, task):
            return "closed task: answered before, or given up"
        return "unknown task: never given to this client"

    def _close(self, record: ClientRecord, *, good: bool) -> None:
        ticket = record.ticket
        assert ticket is not None
        record.close_ticket(good=good)
        del self._open[record.name]
        self._deadlines.pop(_deadline(ticket.task), None)
        self._versions[ticket.version] -= 1
        if not self._versions[ticket.version]:
            del self._versions[ticket.version]

    # ------------------------------------------------------------ who is what

    def _recount(self, record: ClientRecord) -> None:
        """Something about this client changed: update the census.

        A client whose tasks keep coming to nothing still gets new ones, but is not waited for until one succeeds:
        one that restarts in the middle of every task would otherwise hold up a synchronous round for ever.
        """
        kind = 0
        if record.gets_tasks:
            kind = PRESENT
            likely = record.fruitless < self.rules.max_failures
            if record.ticket is not None:
                if not record.overdue:
                    kind |= BUSY | (WAITED if likely else 0)
            elif not self._waits(record.name):
                kind |= READY | (HOPEFUL if likely else 0)
            if record.name not in self._reported:
                kind |= NEW
        self._census.count(record, kind)

    def _waits(self, client: str) -> bool:
        """It has done its part of this round and gets its next task with the next version."""
        return self.rules.redispatch == "at-aggregation" and client in self._reported

    def _free_places(self) -> float:
        rules, census = self.rules, self._census
        left = self._left_to_give()
        if not rules.limited:
            return min(len(census.ready), left)
        taking_part = census.busy + (len(self._reported) if rules.redispatch == "at-aggregation" else 0)
        places = rules.taking_part(census.present) - taking_part
        return max(0, min(places, left))

    def _left_to_give(self) -> float:
        """How many more tasks there are before the final round: when the last of them are answered, nobody is at
        work."""
        if not self.rules.final_updates or self.in_final_round:
            return math.inf
        if self.enough is not None:
            return 0
        if self.rules.before_final_round is None:
            return math.inf
        return max(0, self.rules.before_final_round - self.merged - self._census.busy)

    def _expected(self) -> bool:
        """Whether anybody is waited for: at work, or about to get a task."""
        return self._census.waited > 0 or min(self._census.hopeful, self._free_places()) > 0

    # ------------------------------------------------------------ Algorithm 2: when the round ends

    def _threshold_met(self) -> bool:
        """cnt ≥ ⌈μN⌉, with N the clients that reported in this round or can be expected to."""
        census = self._census
        reporters = len(self._reported)
        taking_part = reporters + census.waited_new + min(census.hopeful_new, int(self._free_places()))
        return self.rules.trigger.met(updates=self._updates, reporters=reporters, clients=taking_part)

    def _round_is_over(self, news: News) -> bool:
        if not self._expected():
            return True
        if self._listening:
            return news == TimerFired(self._listening_timer)
        return self._threshold_met() and self.rules.trigger.t_clk == 0

    def _close_round(self, news: News) -> list[Decision]:
        ending, version, last = self._run_is_over(news), self.version, self.in_final_round
        decisions: list[Decision] = []
        if self._reported and (ending is not None or self._round_is_over(news)):
            decisions.append(self._aggregate())
        elif self._reported and not self._listening and self._threshold_met():
            self._listening = True
            decisions.append(StartTimer(self._listening_timer, self.rules.trigger.t_clk))
        if ending is None and self.version == self.rules.rounds:
            ending = "rounds"
        if ending is None and last and self.version > version:
            ending = self.enough or "max_updates"
        if ending is None and self.enough and not self.in_final_round and not self._reported and not self._expected():
            ending = self._begin_final_round()
        if ending is not None:
            decisions.append(self._finish(ending))
        return decisions

    def _run_is_over(self, news: News) -> str | None:
        """A reason to end the run whatever the state of the round, whose buffer is then aggregated as it is."""
        if isinstance(news, Stop) or (isinstance(news, Enough) and not self.rules.final_updates):
            return news.reason
        if (
            self.rules.final_updates
        ):  # it waits for all of its clients, and may have fewer of them, or late work next to
            return None
        return "max_updates" if self.merged == self.rules.max_updates else None

    def _final_round_is_due(self) -> bool:
        """Decided when a round begins: clients that join in its course, and so change the rules, do not change it."""
        rules, before = self.rules, self.merged - self._updates
        by_updates = rules.before_final_round is not None and before >= rules.before_final_round
        return rules.final_updates > 0 and (by_updates or self.version + 1 == rules.rounds)

    def _begin_final_round(self) -> str | None:
        """Training was over before its time, and nobody is at work any more. Who was and is not waited for has done so
        in vain. Returns why the run ends at once, if nobody is there for its last round."""
        for client in list(self._open):
            self._close(self._clients[client], good=False)
            self._recount(self._clients[client])
        self.in_final_round = True
        return None if self._expected() else self.enough

    def reconsider_final_round(self) -> None:
        """The rules of a run that goes on may be those of a longer one: then the round is not its last."""
        self.in_final_round = self.in_final_round and (self.enough is not None or self._final_round_is_due())

    def _aggregate(self) -> Aggregate:
        reporters = tuple(self._reported)
        action = Aggregate(self.version, self.version + 1, reporters, self._updates)
        self.version += 1
        self._reported.clear()
        self._updates = 0
        self._listening = False
        self.in_final_round = self._final_round_is_due()
        for client in reporters:
            self._recount(self._clients[client])
        return action

    def _finish(self, reason: str) -> Finish:
        self.finished = reason
        for client in self._open:
            self._clients[client].ticket = None
        self._open, self._versions, self._deadlines = {}, Counter(), {}
        return Finish(reason)

    # ------------------------------------------------------------ Algorithm 2: all workers in parallel

    def _hand_out_tasks(self) -> list[Decision]:
        """Whoever has no task, and does not wait for the next version, gets one from the current version.

        All of them, in the order in which they first joined; or, where not all may take part, those who are drawn.
        """
        decisions: list[Decision] = []
        while self.finished is None and len(self._census.ready) and self._free_places() >= 1:
            record = self._by_number[self._chosen()]
            task = _task_name(record.name, record.attempts)
            ticket = record.ticket = Dispatch(record.name, task, self.version, record.cycle, record.attempts)
            record.attempts += 1
            self._open[record.name] = ticket
            self._versions[ticket.version] += 1
            decisions.append(ticket)
            if self.rules.task_timeout is not None:
                self._deadlines[_deadline(task)] = record
                decisions.append(StartTimer(_deadline(task), self.rules.task_timeout))
            self._recount(record)
        return decisions

    def _chosen(self) -> int:
        """Any of the ready ones, each as likely as the others: by a hash of the run's seed and the draw's number."""
        ready = self._census.ready
        if not self.rules.limited:
            return ready[0]
        self._drawn += 1
        return ready[derive_seed(self.rules.seed, "participation", self._drawn) % len(ready)]

    @property
    def _listening_timer(self) -> str:
        return f"round {self.version}"

    # ------------------------------------------------------------ checkpoint

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values. Clients that were never given anything are places in the roster."""
        return {
            "rules": asdict(self.rules),
            "version": self.version,
            "merged": self.merged,
            "finished": self.finished,
            "clients": [record.to_row() for record in self._by_number if not record.untouched],
            "roster": encode_roster([record.name for record in self._by_number], self._roster),
            "away": [record.number for record in self._by_number if record.untouched and not record.here],
            "reported": [[client, updates] for client, updates in self._reported.items()],
            "listening": self._listening,
            "in_final_round": self.in_final_round,
            "enough": self.enough,
            "drawn": self._drawn,
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any], roster: Sequence[str] = ()) -> Coordinator:
        """The coordinator as it was: the same news from here on give the same decisions."""
        coordinator = cls(Rules.from_dict(state["rules"]), roster)
        coordinator.version = state["version"]
        coordinator.merged = state["merged"]
        coordinator.finished = state["finished"]
        coordinator._reported = Counter(dict(state["reported"]))
        coordinator._updates = coordinator._reported.total()
        coordinator._listening = state["listening"]
        coordinator.in_final_round = state.get("in_final_round", False)
        coordinator.enough = state.get("enough")
        coordinator._drawn = state["drawn"]
        for name in decode_roster(state["roster"], roster):
            coordinator._enrol(name)
        for number in state["away"]:
            coordinator._by_number[number].here = False
        for row in state["clients"]:
            coordinator._restore(row)
        for record in coordinator._by_number:
            coordinator._recount(record)
        return coordinator

    def _restore(self, row: list[Any]) -> None:
        number, *values, opened = row
        record = self._by_number[number]
        record.restore(values, opened)
        if record.ticket is None:
            return
        self._open[record.name] = record.ticket
        self._versions[record.ticket.version] += 1
        if self.rules.task_timeout is not None:
            self._deadlines[_deadline(record.ticket.task)] = record


def _task_name(client: str, attempt: int) -> str:
    return f"{client}#{attempt}"


_DEADLINE = "deadline of "


def _deadline(task: str) -> str:
    return f"{_DEADLINE}{task}"


def timer_client(timer: str) -> str:
    """Whose task's deadline it is; empty if it is another timer."""
    return timer.removeprefix(_DEADLINE).rpartition("#")[0] if timer.startswith(_DEADLINE) else ""
