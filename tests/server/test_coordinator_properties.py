"""Any sequence of events, checked from outside against a book that is kept by brute force.

The book sees only the events and the actions, as a driver does. It shares no code with the coordinator.
"""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from math import ceil
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cos2p.aggregation.triggers import Trigger
from cos2p.server.coordinator import Coordinator
from cos2p.server.protocol import (
    Aggregate,
    ClientJoined,
    ClientLeft,
    Decision,
    Dispatch,
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

CLIENTS = st.sampled_from("abcde")
SHARES = [Fraction(1, 8), Fraction(1, 5), Fraction(1, 3), Fraction(1, 2), Fraction(2, 3), Fraction(1)]


class Book:
    """Everything that happened, and who is where."""

    def __init__(self, rules: Rules, share: Fraction | None) -> None:
        self.rules = rules
        self.share = share
        self.log: list[News | Decision] = []
        self.open: dict[str, Dispatch] = {}
        self.here: set[str] = set()
        self.excluded: set[str] = set()
        self.overdue: set[str] = set()
        self.failures: Counter[str] = Counter()  # in a row, since it joined
        self.fruitless: Counter[str] = Counter()  # in a row
        self.timers: list[str] = []
        self.finished = False

    def all(self, kind: type[Any]) -> list[Any]:
        return [entry for entry in self.log if isinstance(entry, kind)]

    @property
    def version(self) -> int:
        return len(self.all(Aggregate))

    @property
    def round_log(self) -> list[News | Decision]:
        """What happened since the last aggregation."""
        ends = [index for index, entry in enumerate(self.log) if isinstance(entry, Aggregate)]
        return self.log[ends[-1] + 1 :] if ends else self.log

    @property
    def reports(self) -> list[str]:
        return [entry.client for entry in self.round_log if isinstance(entry, Merge)]

    @property
    def waiting(self) -> set[str]:
        return set(self.reports) if self.rules.redispatch == "at-aggregation" else set()

    @property
    def with_a_task(self) -> set[str]:
        """Has a task or is owed one."""
        return (self.here - self.excluded - self.waiting) | set(self.open)

    @property
    def given_up_on(self) -> set[str]:
        return self.overdue | {c for c, row in self.fruitless.items() if row >= self.rules.max_failures}

    @property
    def alive(self) -> set[str]:
        """Can be expected to report in this round."""
        return self.here - self.excluded - self.waiting - self.given_up_on

    def threshold(self) -> int:
        reporters = set(self.reports)
        if self.share is not None:
            still_to_come = self.alive - reporters
            known = (self.here - self.excluded - self.given_up_on) | reporters
            return min(ceil(self.share * len(known)), len(reporters) + len(still_to_come))
        assert self.rules.trigger.count is not None
        if self.rules.redispatch == "at-once" and self.alive:
            return self.rules.trigger.count  # more can always come
        return min(self.rules.trigger.count, len(self.reports) + len(self.alive))

    def arrived(self) -> int:
        return len(set(self.reports)) if self.share is not None else len(self.reports)

    def round_should_end(self, event: News) -> bool:
        if not self.reports:
            return False
        if isinstance(event, Stop) or len(self.all(Merge)) == self.rules.max_updates or not self.alive:
            return True
        timer = f"round {self.version}"
        if any(isinstance(entry, StartTimer) and entry.timer == timer for entry in self.log):
            return event == TimerFired(timer)
        return self.arrived() >= self.threshold() and self.rules.trigger.t_clk == 0


class AnyRun(RuleBasedStateMachine):
    @initialize(
        share=st.sampled_from(SHARES),
        count=st.none() | st.integers(1, 7),
        t_clk=st.sampled_from([0.0, 60.0]),
        redispatch=st.sampled_from(["at-once", "at-aggregation"]),
        end=st.sampled_from([(20, None), (None, 50), (3, 30)]),
        task_timeout=st.sampled_from([None, 500.0]),
        max_failures=st.sampled_from([3, 2, 1]),
        clients=st.integers(3, 5),
    )
    def begin(self, share: Fraction, count: int | None, t_clk: float, end: Any, clients: int, **fields: Any) -> None:
        if count is None:
            trigger = Trigger.semi_asynchronous(float(share), t_clk)
        else:
            trigger = Trigger.buffered(count)
        rules = Rules(trigger=trigger, rounds=end[0], max_updates=end[1], **fields)
        self.coordinator = Coordinator(rules)
        self.book = Book(rules, share if count is None else None)
        for client in "abcde"[:clients]:
            self.send(ClientJoined(client))

    # -------------------------------------------------- what can happen

    @rule(client=CLIENTS)
    def join(self, client: str) -> None:
        self.send(ClientJoined(client))

    @rule(client=CLIENTS)
    def leave(self, client: str) -> None:
        self.send(ClientLeft(client))

    # Several at a time, or runs die of their faults before they get anywhere.
    @rule(data=st.data(), times=st.integers(1, 8))
    def answer(self, data: st.DataObject, times: int) -> None:
        for _ in range(times):
            if self.book.open:
                task = data.draw(st.sampled_from(list(self.book.open.values())))
                self.send(UpdateArrived(task.client, task.task))

    @precondition(lambda self: self.book.open)
    @rule(data=st.data(), kind=st.sampled_from([TaskFailed, UpdateRejected]))
    def come_to_nothing(self, data: st.DataObject, kind: Any) -> None:
        task = data.draw(st.sampled_from(list(self.book.open.values())))
        self.send(kind(task.client, task.task, "as drawn"))

    @precondition(lambda self: self.book.timers)
    @rule(data=st.data())
    def fire(self, data: st.DataObject) -> None:
        """Any timer ever started, those that mean nothing any more included."""
        self.send(TimerFired(data.draw(st.sampled_from(self.book.timers))))

    @precondition(lambda self: self.book.all(Dispatch))
    @rule(
        data=st.data(),
        client=CLIENTS | st.just("forged"),
        kind=st.sampled_from([UpdateArrived, TaskFailed, UpdateRejected]),
    )
    def answer_what_was_not_asked(self, data: st.DataObject, client: str, kind: Any) -> None:
        """Replays, other clients' tasks, tasks never given: one line in the log, nothing else."""
        given = [dispatch.task for dispatch in self.book.all(Dispatch)]
        task = data.draw(st.sampled_from(given) | st.sampled_from([f"{client}#99", "", "#"]))
        if client in self.book.open and self.book.open[client].task == task:
            return
        assert self.coordinator.ticket(client, task) is None
        before = self.coordinator.to_dict()
        actions = self.coordinator.handle(
            UpdateArrived(client, task) if kind is UpdateArrived else kind(client, task, "forged")
        )
        assert [type(action) for action in actions] == [Dropped] * (kind is UpdateArrived and not self.book.finished)
        assert self.coordinator.to_dict() == before

    @precondition(lambda self: self.book.version >= 6)
    @rule()
    def stop(self) -> None:
        self.send(Stop("as drawn"))

    # -------------------------------------------------- what must follow

    def send(self, event: News) -> None:
        """Handle the event on the coordinator and on a twin fresh from JSON, and check every action."""
        twin = Coordinator.from_dict(json.loads(json.dumps(self.coordinator.to_dict())))
        actions = self.coordinator.handle(event)
        assert twin.handle(event) == actions
        assert twin.to_dict() == self.coordinator.to_dict()
        if self.book.finished:
            assert actions == []
            return
        self.check(event, list(actions))

    def check(self, event: News, actions: list[Decision]) -> None:
        book = self.book
        book.log.append(event)
        self.check_answer(event, actions)
        self.check_round(event, actions)
        self.check_end(event, actions)
        self.check_tasks(actions)
        assert actions == [], "left over"

    def check_answer(self, event: News, actions: list[Decision]) -> None:
        book = self.book
        match event:
            case ClientJoined(client):
                if book.open.pop(client, None):
                    book.fruitless[client] += 1
                book.here.add(client)
                book.excluded.discard(client)
                book.overdue.discard(client)
                book.failures[client] = 0
            case ClientLeft(client):
                book.here.discard(client)
            case TimerFired(timer):
                book.overdue |= {c for c, task in book.open.items() if timer == f"deadline of {task.task}"}
            case UpdateArrived(client, task):
                given = book.open.pop(client)
                book.here.add(client)
                book.overdue.discard(client)
                book.failures[client] = book.fruitless[client] = 0
                since = book.log[book.log.index(given) :]
                staleness = sum(isinstance(entry, Aggregate) for entry in since)
                assert actions[0] == Merge(client, task, given.version, staleness)
                book.log.append(actions.pop(0))
            case TaskFailed(client) | UpdateRejected(client):
                if isinstance(event, UpdateRejected):
                    book.here.add(client)
                self.check_failure(client, actions)

    def check_failure(self, client: str, actions: list[Decision]) -> None:
        book = self.book
        del book.open[client]
        book.overdue.discard(client)
        book.failures[client] += 1
        book.fruitless[client] += 1
        if book.failures[client] >= book.rules.max_failures:
            assert isinstance(actions[0], Excluded)
            assert actions[0].client == client
            book.log.append(actions.pop(0))
            book.excluded.add(client)

    def check_round(self, event: News, actions: list[Decision]) -> None:
        book = self.book
        if book.round_should_end(event):
            reports = book.reports
            assert actions[0] == Aggregate(book.version, book.version + 1, tuple(dict.fromkeys(reports)), len(reports))
            book.log.append(actions.pop(0))
            assert self.coordinator.version == book.version
        elif actions and actions[0] == StartTimer(f"round {book.version}", book.rules.trigger.t_clk):
            assert book.arrived() >= book.threshold()
            assert actions[0] not in book.log
            book.log.append(actions[0])
            book.timers.append(actions.pop(0).timer)
        else:
            started = StartTimer(f"round {book.version}", book.rules.trigger.t_clk) in book.log
            assert not book.reports or started or book.arrived() < book.threshold()

    def check_end(self, event: News, actions: list[Decision]) -> None:
        book = self.book
        over = (
            isinstance(event, Stop)
            or book.version == book.rules.rounds
            or len(book.all(Merge)) == book.rules.max_updates
        )
        assert over == (self.coordinator.finished is not None)
        if over:
            assert isinstance(actions.pop(0), Finish)
            book.finished = True
            book.open.clear()

    def check_tasks(self, actions: list[Decision]) -> None:
        book = self.book
        while actions:
            dispatch = actions.pop(0)
            assert isinstance(dispatch, Dispatch)
            client = dispatch.client
            assert client not in book.open, "two open tasks"
            assert client in book.with_a_task
            assert dispatch.task not in [earlier.task for earlier in book.all(Dispatch)]
            assert dispatch.version == book.version
            assert dispatch.cycle == sum(merge.client == client for merge in book.all(Merge))
            assert dispatch.attempt == sum(earlier.client == client for earlier in book.all(Dispatch))
            book.log.append(dispatch)
            book.open[client] = dispatch
            if book.rules.task_timeout is not None:
                timer = StartTimer(f"deadline of {dispatch.task}", book.rules.task_timeout)
                assert actions.pop(0) == timer
                book.timers.append(timer.timer)

    @invariant()
    def the_open_tasks_are_those_of_the_book(self) -> None:
        if not hasattr(self, "book"):
            return
        given = {client: ticket.task for client, ticket in self.coordinator.in_flight().items()}
        assert given == {client: dispatch.task for client, dispatch in self.book.open.items()}
        for client, task in given.items():
            ticket = self.coordinator.ticket(client, task)
            dispatch = self.book.open[client]
            assert ticket is not None
            assert (ticket.version, ticket.cycle, ticket.attempt) == (
                dispatch.version,
                dispatch.cycle,
                dispatch.attempt,
            )
        versions = Counter(dispatch.version for dispatch in self.book.open.values())
        assert self.coordinator.in_flight_versions() == versions

    @invariant()
    def nobody_idles_and_no_update_lies_about(self) -> None:
        if not hasattr(self, "book") or self.book.finished:
            return
        assert self.book.with_a_task == self.book.open.keys()
        assert self.coordinator.stalled == (not self.book.alive)
        if self.coordinator.stalled:
            assert self.book.reports == []


AnyRun.TestCase.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
TestAnyRun = AnyRun.TestCase
