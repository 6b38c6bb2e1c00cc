"""The coordinator by example. Clients are a, b, c …; a#0 is a's first task, a#1 its second."""

from __future__ import annotations

import json

import pytest

from cos2p.aggregation.settings import Redispatch
from cos2p.aggregation.triggers import Trigger
from cos2p.errors import ConfigError
from cos2p.server.coordinator import Coordinator
from cos2p.server.protocol import (
    Aggregate,
    ClientJoined,
    ClientLeft,
    Decision,
    Dispatch,
    Finish,
    Merge,
    StartTimer,
    Stop,
    TaskFailed,
    TimerFired,
    UpdateArrived,
    UpdateRejected,
)
from cos2p.server.rules import Rules
from cos2p.tracking.event_kinds import Dropped, Excluded

HALF = Trigger.semi_asynchronous(mu=0.5, t_clk=0.0)
HALF_THEN_60 = Trigger.semi_asynchronous(mu=0.5, t_clk=60.0)


def fleet(
    names: str, trigger: Trigger, redispatch: Redispatch = "at-aggregation", **rules: float | None
) -> Coordinator:
    """A coordinator whose clients, one per letter, have joined and hold their first task."""
    coordinator = Coordinator(Rules(trigger, redispatch, **{"rounds": 100, **rules}))  # type: ignore[arg-type]
    for name in names:
        coordinator.handle(ClientJoined(name))
    return coordinator


def report(coordinator: Coordinator, client: str) -> list[Decision]:
    """The client's open task is answered with a good update."""
    return coordinator.handle(UpdateArrived(client, coordinator.in_flight()[client].task))


def fail(coordinator: Coordinator, client: str) -> list[Decision]:
    return coordinator.handle(TaskFailed(client, coordinator.in_flight()[client].task, "out of memory"))


class TestSemiAsynchronous:
    def test_two_of_four_then_the_wait_then_the_stragglers_one_version_late(self) -> None:
        server = fleet("abcd", HALF_THEN_60)

        assert report(server, "a") == [Merge("a", "a#0", version=0, staleness=0)]
        assert report(server, "b") == [Merge("b", "b#0", 0, 0), StartTimer("round 0", 60.0)]
        assert report(server, "c") == [Merge("c", "c#0", 0, 0)]  # within T_clk
        assert server.handle(TimerFired("round 0")) == [
            Aggregate(round=0, version=1, clients=("a", "b", "c"), updates=3),
            Dispatch("a", "a#1", version=1, cycle=1, attempt=1),
            Dispatch("b", "b#1", 1, 1, 1),
            Dispatch("c", "c#1", 1, 1, 1),
        ]
        assert report(server, "d") == [Merge("d", "d#0", version=0, staleness=1)]  # never interrupted
        assert report(server, "c") == [Merge("c", "c#1", 1, 0), StartTimer("round 1", 60.0)]

    def test_without_a_wait_the_round_closes_at_the_threshold(self) -> None:
        server = fleet("abc", HALF)  # ⌈1.5⌉ = 2
        assert report(server, "b") == [Merge("b", "b#0", 0, 0)]
        assert report(server, "a") == [
            Merge("a", "a#0", 0, 0),
            Aggregate(0, 1, ("b", "a"), 2),
            Dispatch("a", "a#1", 1, 1, 1),
            Dispatch("b", "b#1", 1, 1, 1),
        ]

    def test_the_wait_ends_early_when_nobody_is_in_flight(self) -> None:
        server = fleet("abc", HALF_THEN_60)
        report(server, "a")
        assert StartTimer("round 0", 60.0) in report(server, "b")
        assert report(server, "c")[1] == Aggregate(0, 1, ("a", "b", "c"), 3)
        assert server.handle(TimerFired("round 0")) == []  # the old timer means nothing now

    def test_the_wait_ends_early_when_the_last_one_in_flight_leaves(self) -> None:
        server = fleet("abc", HALF_THEN_60)
        report(server, "a")
        report(server, "b")
        assert server.handle(ClientLeft("c"))[0] == Aggregate(0, 1, ("a", "b"), 2)

    def test_at_once_a_reporter_goes_on_from_the_same_version_and_counts_once(self) -> None:
        server = fleet("abcd", HALF, "at-once")
        assert report(server, "a") == [Merge("a", "a#0", 0, 0), Dispatch("a", "a#1", 0, 1, 1)]
        assert report(server, "a") == [Merge("a", "a#1", 0, 0), Dispatch("a", "a#2", 0, 2, 2)]
        assert report(server, "b") == [
            Merge("b", "b#0", 0, 0),
            Aggregate(0, 1, ("a", "b"), updates=3),
            Dispatch("b", "b#1", version=1, cycle=1, attempt=1),
        ]
        assert report(server, "a") == [Merge("a", "a#2", 0, staleness=1), Dispatch("a", "a#3", 1, 3, 3)]

    def test_at_once_the_wait_runs_its_time_because_everybody_is_at_work(self) -> None:
        server = fleet("a", HALF_THEN_60, "at-once")
        assert report(server, "a") == [
            Merge("a", "a#0", 0, 0),
            StartTimer("round 0", 60.0),
            Dispatch("a", "a#1", 0, 1, 1),
        ]
        assert server.handle(TimerFired("round 0")) == [Aggregate(0, 1, ("a",), 1)]


class TestSpecialCases:
    def test_synchronous_waits_for_everyone(self) -> None:
        server = fleet("abc", Trigger.synchronous())
        assert len(report(server, "c")) == len(report(server, "a")) == 1
        assert report(server, "b")[1:] == [
            Aggregate(0, 1, ("c", "a", "b"), 3),
            Dispatch("a", "a#1", 1, 1, 1),
            Dispatch("b", "b#1", 1, 1, 1),
            Dispatch("c", "c#1", 1, 1, 1),
        ]

    def test_synchronous_waits_for_everyone_though_a_reporter_has_left(self) -> None:
        server = fleet("abc", Trigger.synchronous())
        report(server, "a")
        assert server.handle(ClientLeft("a")) == []
        assert report(server, "b") == [Merge("b", "b#0", 0, 0)]  # c is still at work
        assert report(server, "c")[1] == Aggregate(0, 1, ("a", "b", "c"), 3)

    @pytest.mark.parametrize("redispatch", ["at-once", "at-aggregation"])
    def test_asynchronous_aggregates_every_update(self, redispatch: Redispatch) -> None:
        server = fleet("ab", Trigger.asynchronous(), redispatch)
        assert report(server, "a") == [
            Merge("a", "a#0", 0, 0),
            Aggregate(0, 1, ("a",), 1),
            Dispatch("a", "a#1", 1, 1, 1),
        ]
        assert report(server, "b")[:2] == [Merge("b", "b#0", 0, staleness=1), Aggregate(1, 2, ("b",), 1)]

    def test_a_buffer_counts_updates_and_may_be_larger_than_the_fleet(self) -> None:
        server = fleet("ab", Trigger.buffered(5), "at-once")
        for client in "aaab":
            assert [type(action) for action in report(server, client)] == [Merge, Dispatch]
        assert report(server, "a")[1] == Aggregate(0, 1, ("a", "b"), updates=5)

    def test_a_buffer_larger_than_the_fleet_closes_when_all_wait_for_it(self) -> None:
        server = fleet("ab", Trigger.buffered(5), "at-aggregation")
        report(server, "a")
        assert report(server, "b")[1] == Aggregate(0, 1, ("a", "b"), 2)


class TestWhoIsThere:
    def test_a_late_client_gets_a_task_at_once_and_counts(self) -> None:
        server = fleet("ab", Trigger.synchronous())
        report(server, "a")
        assert server.handle(ClientJoined("c")) == [Dispatch("c", "c#0", 0, 0, 0)]
        assert report(server, "b") == [Merge("b", "b#0", 0, 0)]
        assert report(server, "c")[1] == Aggregate(0, 1, ("a", "b", "c"), 3)

    def test_a_restarted_client_gets_a_new_task_and_the_old_answer_is_dropped(self) -> None:
        server = fleet("ab", HALF)
        assert server.handle(ClientJoined("a")) == [Dispatch("a", "a#1", 0, cycle=0, attempt=1)]
        assert server.ticket("a", "a#0") is None
        (drop,) = server.handle(UpdateArrived("a", "a#0"))
        assert isinstance(drop, Dropped)
        assert drop.reason.startswith("closed task")

    def test_a_client_back_in_the_round_it_reported_in_waits_for_the_next(self) -> None:
        server = fleet("ab", Trigger.synchronous())
        report(server, "a")
        server.handle(ClientLeft("a"))
        assert server.handle(ClientJoined("a")) == []
        assert report(server, "b")[1:] == [
            Aggregate(0, 1, ("a", "b"), 2),
            Dispatch("a", "a#1", 1, 1, 1),
            Dispatch("b", "b#1", 1, 1, 1),
        ]

    def test_who_left_gets_no_task(self) -> None:
        server = fleet("ab", Trigger.synchronous())
        report(server, "a")
        assert server.handle(ClientLeft("b")) == [Aggregate(0, 1, ("a",), 1), Dispatch("a", "a#1", 1, 1, 1)]
        assert server.handle(ClientLeft("b")) == []
        assert server.handle(ClientLeft("nobody")) == []

    def test_an_answer_after_all_brings_a_client_back(self) -> None:
        server = fleet("ab", HALF)
        server.handle(ClientLeft("b"))
        report(server, "a")
        assert server.version == 1
        assert report(server, "b")[0] == Merge("b", "b#0", 0, staleness=1)
        assert server.in_flight()["b"] == Dispatch("b", "b#1", version=2, cycle=1, attempt=1)

    def test_a_failure_reported_for_a_client_that_left_gives_it_no_task(self) -> None:
        server = fleet("ab", HALF)
        server.handle(ClientLeft("b"))
        assert fail(server, "b") == []
        assert server.handle(ClientJoined("b")) == [Dispatch("b", "b#1", 0, 0, 1)]

    def test_everybody_gone_is_stalled_until_somebody_joins(self) -> None:
        server = Coordinator(Rules(HALF, "at-aggregation", rounds=1))
        assert server.stalled
        server.handle(ClientJoined("a"))
        assert not server.stalled
        assert server.handle(ClientLeft("a")) == []
        assert server.stalled
        assert server.handle(ClientJoined("a")) == [Dispatch("a", "a#1", 0, 0, 1)]
        assert not server.stalled


class TestDeadlines:
    def test_an_overdue_client_is_not_waited_for_and_welcome_later(self) -> None:
        server = Coordinator(Rules(Trigger.synchronous(), "at-aggregation", rounds=9, task_timeout=30.0))
        assert server.handle(ClientJoined("a"))[1:] == [StartTimer("deadline of a#0", 30.0)]
        server.handle(ClientJoined("b"))
        report(server, "a")
        assert server.handle(TimerFired("deadline of b#0")) == [
            Aggregate(0, 1, ("a",), 1),
            Dispatch("a", "a#1", 1, 1, 1),
            StartTimer("deadline of a#1", 30.0),
        ]
        assert server.ticket("b", "b#0") == Dispatch("b", "b#0", 0, 0, 0)
        assert report(server, "b") == [Merge("b", "b#0", 0, staleness=1)]  # waits for a again
        assert report(server, "a")[1] == Aggregate(1, 2, ("b", "a"), 2)
        assert report(server, "a") == [Merge("a", "a#2", 2, 0)]  # b is waited for again

    def test_the_deadline_of_an_answered_task_means_nothing(self) -> None:
        server = fleet("ab", Trigger.synchronous(), "at-once", task_timeout=30.0)
        report(server, "a")
        assert server.handle(TimerFired("deadline of a#0")) == []
        assert report(server, "a") == [
            Merge("a", "a#1", 0, 0),
            Dispatch("a", "a#2", 0, 2, 2),
            StartTimer("deadline of a#2", 30.0),
        ]

    def test_the_share_is_of_those_still_expected(self) -> None:
        server = fleet("abcdefgh", HALF, task_timeout=30.0)
        for dead in "efgh":
            server.handle(TimerFired(f"deadline of {dead}#0"))
        report(server, "a")
        assert report(server, "b")[1] == Aggregate(0, 1, ("a", "b"), 2)  # 2 of 4, not 4 of 8

    def test_all_overdue_is_stalled_but_a_late_answer_goes_on(self) -> None:
        server = fleet("a", HALF, task_timeout=30.0)
        assert server.handle(TimerFired("deadline of a#0")) == []
        assert server.stalled
        assert report(server, "a")[1] == Aggregate(0, 1, ("a",), 1)

    def test_the_timers_that_matter_can_be_started_anew(self) -> None:
        server = fleet("abcd", HALF_THEN_60, task_timeout=500.0)
        report(server, "a")
        report(server, "b")
        server.handle(TimerFired("deadline of c#0"))
        assert server.pending_timers() == [StartTimer("round 0", 60.0), StartTimer("deadline of d#0", 500.0)]
        assert fleet("a", HALF).pending_timers() == []


class TestAnswersThatDoNotCount:
    def test_a_failed_task_is_tried_again_with_the_same_window(self) -> None:
        server = fleet("ab", Trigger.synchronous())
        assert fail(server, "a") == [Dispatch("a", "a#1", version=0, cycle=0, attempt=1)]
        assert report(server, "a") == [Merge("a", "a#1", 0, 0)]

    def test_a_refused_update_changes_nothing_and_gets_a_new_task(self) -> None:
        server = fleet("ab", Trigger.asynchronous())
        assert server.handle(UpdateRejected("a", "a#0", "not finite")) == [Dispatch("a", "a#1", 0, 0, 1)]
        assert (server.version, server.merged) == (0, 0)

    @pytest.mark.parametrize(
        ("client", "task", "reason"),
        [
            ("a", "a#0", "closed task"),  # replayed
            ("b", "a#1", "unknown task"),  # under another name
            ("nobody", "a#1", "unknown task"),
            ("a", "a#7", "unknown task"),  # never given
            ("a", "", "unknown task"),
        ],
    )
    def test_replays_and_forgeries_are_dropped_and_change_nothing(self, client: str, task: str, reason: str) -> None:
        server = fleet("abc", Trigger.synchronous(), "at-once")
        report(server, "a")
        before = server.to_dict()
        (drop,) = server.handle(UpdateArrived(client, task))
        assert isinstance(drop, Dropped)
        assert drop.reason.startswith(reason)
        assert server.handle(UpdateRejected(client, task, "forged")) == []
        assert server.handle(TaskFailed(client, task, "forged")) == []
        assert server.to_dict() == before

    def test_a_client_that_only_fails_is_benched_until_it_joins_anew(self) -> None:
        server = fleet("ab", Trigger.synchronous(), max_failures=2)
        report(server, "b")
        assert fail(server, "a") == [Dispatch("a", "a#1", 0, 0, 1)]
        assert fail(server, "a") == [
            Excluded(
                client="a", task="", reason="2 tasks in a row came to nothing; the last one failed: out of memory"
            ),
            Aggregate(0, 1, ("b",), 1),  # nobody else to wait for
            Dispatch("b", "b#1", 1, 1, 1),
        ]
        assert server.handle(ClientJoined("a")) == [Dispatch("a", "a#2", 1, 0, 2)]
        assert fail(server, "a") == [Dispatch("a", "a#3", 1, 0, 3)]  # counts from nought again

    def test_a_client_that_restarts_in_every_task_gets_tasks_but_is_not_waited_for(self) -> None:
        server = fleet("ab", Trigger.synchronous(), max_failures=2)
        report(server, "b")
        assert server.handle(ClientJoined("a")) == [Dispatch("a", "a#1", 0, 0, 1)]
        assert server.handle(ClientJoined("a")) == [
            Aggregate(0, 1, ("b",), 1),
            Dispatch("a", "a#2", 1, 0, 2),
            Dispatch("b", "b#1", 1, 1, 1),
        ]
        assert report(server, "a") == [Merge("a", "a#2", 1, 0)]  # and now it counts again
        assert report(server, "b")[1] == Aggregate(1, 2, ("a", "b"), 2)
        report(server, "b")
        assert server.version == 2

    def test_two_clients_that_come_and_go_in_turn_do_not_hold_up_the_third(self) -> None:
        server = fleet("abc", Trigger.synchronous(), max_failures=2)
        report(server, "c")
        server.handle(ClientLeft("a"))
        for coming, going in ("ab", "ba", "ab"):  # one of them is always there, with a task
            assert server.version == 0
            server.handle(ClientJoined(coming))
            server.handle(ClientLeft(going))
        assert server.version == 1

    def test_a_success_ends_a_row_of_failures(self) -> None:
        server = fleet("a", Trigger.asynchronous(), max_failures=2)
        for _ in range(3):
            assert not any(isinstance(action, Excluded) for action in fail(server, "a") + report(server, "a"))


class TestEnd:
    def test_after_the_last_round_nothing_happens_any_more(self) -> None:
        server = fleet("ab", HALF, rounds=1)
        assert report(server, "a") == [Merge("a", "a#0", 0, 0), Aggregate(0, 1, ("a",), 1), Finish("rounds")]
        assert server.finished == "rounds"
        assert (server.in_flight(), server.ticket("b", "b#0"), server.stalled) == ({}, None, False)
        for event in (
            UpdateArrived("b", "b#0"),
            ClientJoined("c"),
            ClientLeft("a"),
            TimerFired("round 0"),
            Stop("again"),
        ):
            assert server.handle(event) == []

    def test_the_last_update_flushes_the_buffer(self) -> None:
        server = fleet("abcd", Trigger.synchronous(), rounds=None, max_updates=2)
        report(server, "c")
        assert report(server, "a") == [
            Merge("a", "a#0", 0, 0),
            Aggregate(0, 1, ("c", "a"), 2),
            Finish("max_updates"),
        ]

    def test_stop_flushes_the_buffer(self) -> None:
        server = fleet("abcd", HALF_THEN_60)
        report(server, "c")
        assert server.handle(Stop("time is up")) == [Aggregate(0, 1, ("c",), 1), Finish("time is up")]

    def test_stop_with_nothing_buffered_only_finishes(self) -> None:
        assert fleet("ab", HALF).handle(Stop("")) == [Finish("")]


def test_the_versions_in_flight_are_counted_for_as_long_as_an_answer_is_welcome() -> None:
    server = fleet("abcd", Trigger.asynchronous())
    report(server, "a")
    report(server, "b")
    assert server.in_flight_versions() == {0: 2, 1: 1, 2: 1}
    server.handle(ClientLeft("c"))
    assert server.in_flight_versions() == {0: 2, 1: 1, 2: 1}
    server.handle(ClientJoined("c"))
    assert server.in_flight_versions() == {0: 1, 1: 1, 2: 2}


def test_the_state_survives_json_with_its_keys_sorted() -> None:
    server = fleet("zya", HALF_THEN_60, task_timeout=9.0, max_failures=3)
    report(server, "y")
    fail(server, "z")
    report(server, "z")
    text = json.dumps(server.to_dict(), sort_keys=True)
    twin = Coordinator.from_dict(json.loads(text))
    assert twin.to_dict() == server.to_dict()
    assert twin.rules == server.rules
    fired = server.handle(TimerFired("round 0"))
    assert [action.client for action in fired if isinstance(action, Dispatch)] == ["z", "y"]
    assert twin.handle(TimerFired("round 0")) == fired


def test_rules_without_room_to_train_are_named() -> None:
    with pytest.raises(ConfigError, match="the last round alone takes 3 of 3 updates"):
        Rules(HALF, "at-once", max_updates=3, final_updates=3)
