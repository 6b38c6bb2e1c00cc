"""Whole runs on a virtual clock: random fleets, with and without faults. Whatever happens, a run ends."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cos2p.aggregation.settings import Redispatch
from cos2p.aggregation.triggers import Trigger
from cos2p.server.coordinator import Coordinator
from cos2p.server.protocol import (
    Aggregate,
    ClientJoined,
    ClientLeft,
    Decision,
    Dispatch,
    Merge,
    News,
    StartTimer,
    TaskFailed,
    TimerFired,
    UpdateArrived,
    UpdateRejected,
)
from cos2p.server.rules import Rules


@dataclass
class Device:
    """Needs `seconds[k]` for its k-th task, and `fate[k]` is what becomes of that task; both repeat.

    answers · fails · refused · silent (no answer, ever) · dies (gone for good) · returns (gone, back later)
    · restarts (joins anew with the task half done)
    """

    seconds: list[int]
    fate: list[str]


@dataclass
class Run:
    """A driver in twenty lines: a queue of events in time, and the coordinator's wishes carried out."""

    coordinator: Coordinator
    devices: dict[str, Device]

    def play(self, until: float = math.inf) -> list[tuple[float, Decision]]:
        queue: list[tuple[float, int, News]] = []
        history: list[tuple[float, Decision]] = []

        def at(time: float, event: News) -> None:
            heapq.heappush(queue, (time, len(history) * 1000 + len(queue), event))

        for name in self.devices:
            at(0.0, ClientJoined(name))
        while queue and self.coordinator.finished is None:
            now, _, event = heapq.heappop(queue)
            if now > until:
                break
            for action in self.coordinator.handle(event):
                history.append((now, action))
                assert len(history) < 5_000, "runs away"
                if isinstance(action, StartTimer):
                    at(now + action.seconds, TimerFired(action.timer))
                elif isinstance(action, Dispatch):
                    for delay, outcome in self.outcome(action):
                        at(now + delay, outcome)
        return history

    def outcome(self, task: Dispatch) -> list[tuple[float, News]]:
        device = self.devices[task.client]
        seconds = device.seconds[task.attempt % len(device.seconds)]
        match device.fate[task.attempt % len(device.fate)]:
            case "answers":
                return [(seconds, UpdateArrived(task.client, task.task))]
            case "fails":
                return [(seconds, TaskFailed(task.client, task.task, "as planned"))]
            case "refused":
                return [(seconds, UpdateRejected(task.client, task.task, "as planned"))]
            case "dies":
                return [(seconds, ClientLeft(task.client))]
            case "returns":
                return [(seconds, ClientLeft(task.client)), (seconds + 7, ClientJoined(task.client))]
            case "restarts":
                return [(seconds, ClientJoined(task.client)), (seconds + 1, UpdateArrived(task.client, task.task))]
        return []


def of_kind(history: list[tuple[float, Decision]], kind: type[Any]) -> list[Any]:
    return [action for _, action in history if isinstance(action, kind)]


REDISPATCH = st.sampled_from(["at-once", "at-aggregation"])
TRIGGERS = st.one_of(
    st.builds(Trigger.semi_asynchronous, st.sampled_from([0.1, 0.25, 0.5, 1.0]), st.sampled_from([0.0, 5.0, 60.0])),
    st.builds(Trigger.buffered, st.integers(1, 9)),
)
SECONDS = st.lists(st.integers(1, 40), min_size=1, max_size=4)
FATES = ["answers", "fails", "refused", "dies", "returns", "restarts"]
STEADY = st.builds(Device, SECONDS, st.just(["answers"]))


def fleets(kind: st.SearchStrategy[Device], least: int = 1) -> st.SearchStrategy[dict[str, Device]]:
    names = st.lists(kind, min_size=least, max_size=6)
    return names.map(lambda devices: {f"device-{index}": device for index, device in enumerate(devices)})


def devices_with_faults(fates: list[str]) -> st.SearchStrategy[Device]:
    return st.builds(Device, SECONDS, st.lists(st.sampled_from(fates), min_size=1, max_size=5))


@settings(max_examples=300, deadline=None)
@given(TRIGGERS, REDISPATCH, fleets(devices_with_faults(FATES), 0), STEADY)
def test_a_run_ends_as_long_as_one_device_works(
    trigger: Trigger, redispatch: Redispatch, devices: dict[str, Device], steady: Device
) -> None:
    coordinator = Coordinator(Rules(trigger, redispatch, rounds=4))
    history = Run(coordinator, {**devices, "steady": steady}).play()
    assert coordinator.finished == "rounds"
    assert [aggregate.version for aggregate in of_kind(history, Aggregate)] == [1, 2, 3, 4]


@settings(max_examples=300, deadline=None)
@given(TRIGGERS, REDISPATCH, fleets(devices_with_faults([*FATES, "silent"]), 0), STEADY, st.integers(5, 100))
def test_a_run_ends_in_spite_of_devices_that_fall_silent_when_tasks_have_a_deadline(
    trigger: Trigger, redispatch: Redispatch, devices: dict[str, Device], steady: Device, task_timeout: int
) -> None:
    # A deadline below the steady device's time makes it overdue again and again; its answers count all the same.
    rules = Rules(trigger, redispatch, max_updates=12, task_timeout=task_timeout)
    coordinator = Coordinator(rules)
    history = Run(coordinator, {**devices, "steady": steady}).play()
    assert coordinator.finished == "max_updates"
    assert len(of_kind(history, Merge)) == 12
    assert sum(aggregate.updates for aggregate in of_kind(history, Aggregate)) == 12  # flushed to the last


@settings(max_examples=100, deadline=None)
@given(fleets(STEADY))
def test_synchronous_rounds_are_those_of_fedavg(devices: dict[str, Device]) -> None:
    coordinator = Coordinator(Rules(Trigger.synchronous(), "at-aggregation", rounds=5))
    history = Run(coordinator, devices).play()
    merges = of_kind(history, Merge)
    assert {merge.staleness for merge in merges} == {0}
    for number in range(5):
        assert sorted(m.client for m in merges if m.version == number) == sorted(devices)
    # A round takes as long as its slowest device.
    ends = [time for time, action in history if isinstance(action, Aggregate)]
    slowest = [max(d.seconds[k % len(d.seconds)] for d in devices.values()) for k in range(5)]
    assert ends == [sum(slowest[: k + 1]) for k in range(5)]


@settings(max_examples=200, deadline=None)
@given(fleets(devices_with_faults([*FATES, "silent"])))
def test_synchronous_rounds_take_nobody_twice_and_miss_nobody_who_answers(devices: dict[str, Device]) -> None:
    rules = Rules(Trigger.synchronous(), "at-aggregation", rounds=5, task_timeout=60.0)
    coordinator = Coordinator(rules)
    history = Run(coordinator, {**devices, "steady": Device([3], ["answers"])}).play()
    always = {name for name, device in devices.items() if set(device.fate) == {"answers"}}
    aggregates = of_kind(history, Aggregate)
    assert len(aggregates) == 5
    for aggregate in aggregates:
        assert aggregate.updates == len(aggregate.clients)
        assert always <= set(aggregate.clients)


@settings(max_examples=100, deadline=None)
@given(fleets(devices_with_faults(FATES)))
def test_asynchronous_runs_aggregate_each_update_alone_and_know_one_way_to_redispatch(
    devices: dict[str, Device],
) -> None:
    histories = [
        Run(Coordinator(Rules(Trigger.asynchronous(), way, rounds=15)), devices).play(until=300)  # type: ignore[arg-type]
        for way in ("at-once", "at-aggregation")
    ]
    assert histories[0] == histories[1]
    assert {aggregate.updates for aggregate in of_kind(histories[0], Aggregate)} <= {1}


@settings(max_examples=100, deadline=None)
@given(fleets(STEADY), REDISPATCH)
def test_a_share_of_one_client_without_a_wait_is_asynchronous(
    devices: dict[str, Device], redispatch: Redispatch
) -> None:
    one_of_n = Trigger.semi_asynchronous(mu=1 / len(devices), t_clk=0.0)
    share = Run(Coordinator(Rules(one_of_n, redispatch, rounds=15)), devices).play()
    single = Run(Coordinator(Rules(Trigger.asynchronous(), redispatch, rounds=15)), devices).play()
    assert share == single


@settings(max_examples=100, deadline=None)
@given(TRIGGERS, fleets(STEADY))
def test_at_once_no_device_ever_idles(trigger: Trigger, devices: dict[str, Device]) -> None:
    coordinator = Coordinator(Rules(trigger, "at-once", max_updates=30))
    history = Run(coordinator, devices).play()
    end = history[-1][0]
    for name, device in devices.items():
        starts = [time for time, a in history if isinstance(a, Dispatch) and a.client == name]
        times = [device.seconds[k % len(device.seconds)] for k in range(len(starts))]
        assert starts == [sum(times[:k]) for k in range(len(starts))]
        assert sum(times) >= end  # its last task was under way when the run ended


def test_a_semi_asynchronous_run_by_hand() -> None:
    """Three devices of 10 s and one of 25 s, μ = 0.5, T_clk = 2, a new task with each version."""
    devices = {name: Device([seconds], ["answers"]) for name, seconds in zip("abcd", (10, 10, 10, 25), strict=True)}
    trigger = Trigger.semi_asynchronous(mu=0.5, t_clk=2.0)
    history = Run(Coordinator(Rules(trigger, "at-aggregation", rounds=3)), devices).play()
    rounds = [(time, a.clients) for time, a in history if isinstance(a, Aggregate)]
    # a, b, c are back at 10, the wait ends at 12; again at 22 and 24; d comes at 25 with a model two versions old;
    # a, b, c are back at 34, and now that nobody is in flight there is nothing to wait for.
    assert rounds == [(12.0, ("a", "b", "c")), (24.0, ("a", "b", "c")), (34.0, ("d", "a", "b", "c"))]
    late = [(time, a.staleness) for time, a in history if isinstance(a, Merge) and a.client == "d"]
    assert late == [(25.0, 2)]
