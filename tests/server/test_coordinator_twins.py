"""The quick coordinator decides as the plain one does, on any history; and restarts as if nothing had happened."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from cos2p.aggregation.settings import ScheduleSettings
from cos2p.aggregation.triggers import Trigger
from cos2p.server.coordinator import Coordinator
from cos2p.server.protocol import (
    ClientJoined,
    ClientLeft,
    Dispatch,
    Enough,
    News,
    StartTimer,
    TaskFailed,
    TimerFired,
    UpdateArrived,
    UpdateRejected,
)
from cos2p.server.rules import Rules
from tests.server.plain_coordinator import Coordinator as PlainCoordinator

NAMES = [f"d{i}" for i in range(7)]

TRIGGERS = st.one_of(
    st.builds(Trigger.semi_asynchronous, st.sampled_from([0.1, 0.3, 0.5, 1.0]), st.sampled_from([0.0, 3.0])),
    st.builds(Trigger.buffered, st.integers(1, 9)),
)
RULES = st.builds(
    Rules,
    trigger=TRIGGERS,
    redispatch=st.sampled_from(["at-once", "at-aggregation"]),
    rounds=st.just(40),
    max_updates=st.sampled_from([None, 7, 15]),
    final_updates=st.sampled_from([0, 3]),
    task_timeout=st.sampled_from([None, 5.0]),
    max_failures=st.integers(1, 3),
)


class History:
    """What a driver would do, by dice: answers, comings and goings, timers, and things never asked for."""

    def __init__(self, data: st.DataObject) -> None:
        self.data, self.open, self.timers = data, dict[str, str](), list[str]()

    def take(self, actions: list[object]) -> None:
        for action in actions:
            if isinstance(action, Dispatch):
                self.open[action.client] = action.task
            elif isinstance(action, StartTimer):
                self.timers.append(action.timer)

    def event(self) -> News:
        kinds = ["arrive"] * 10 + ["join"] * 4 + ["leave", "fail", "refuse", "ring", "odd"] * 2 + ["enough"]
        kind = self.data.draw(st.sampled_from(kinds))
        if kind == "enough":
            return Enough("as drawn")
        if kind in ("arrive", "fail", "refuse") and self.open:
            client = self.data.draw(st.sampled_from(sorted(self.open)))
            task = self.open.pop(client)
            if kind == "arrive":
                return UpdateArrived(client, task)
            return TaskFailed(client, task, "why") if kind == "fail" else UpdateRejected(client, task, "why")
        if kind == "ring" and self.timers:
            return TimerFired(self.timers.pop(self.data.draw(st.integers(0, len(self.timers) - 1))))
        client = self.data.draw(st.sampled_from(NAMES))
        if kind == "odd":
            return UpdateArrived(client, f"{client}#{self.data.draw(st.integers(0, 3))}")
        return ClientLeft(client) if kind == "leave" else ClientJoined(client)


@settings(max_examples=150, deadline=None)
@given(rules=RULES, data=st.data())
def test_every_decision_is_the_plain_ones(rules: Rules, data: st.DataObject) -> None:
    quick, plain, history = Coordinator(rules, roster=NAMES[:4]), PlainCoordinator(rules), History(data)
    for _ in range(data.draw(st.integers(1, 60))):
        event = history.event()
        actions = quick.handle(event)
        assert actions == plain.handle(event)
        assert dict(quick.in_flight()) == plain.in_flight()
        assert dict(quick.in_flight_versions()) == plain.in_flight_versions()
        assert quick.pending_timers() == plain.pending_timers()
        assert quick.stalled == plain.stalled
        assert quick.in_final_round == plain.in_final_round or quick.finished
        history.take(list(actions))
        if data.draw(st.integers(0, 9)) == 0:
            stored = json.loads(json.dumps(quick.to_dict()))
            quick = Coordinator.from_dict(stored, roster=NAMES[:4])


@settings(max_examples=100, deadline=None)
@given(
    redispatch=st.sampled_from(["at-once", "at-aggregation"]),
    trigger=TRIGGERS,
    per_round=st.sampled_from([None, 0.4, 1, 3]),
    data=st.data(),
)
def test_limits_hold_and_a_restart_draws_on(
    redispatch: str, trigger: Trigger, per_round: float | None, data: st.DataObject
) -> None:
    rules = Rules(
        trigger,
        redispatch,
        rounds=30,
        clients_per_round=per_round,
        seed=4,  # type: ignore[arg-type]
    )
    coordinator, history = Coordinator(rules), History(data)
    twin = Coordinator(rules)
    for _ in range(data.draw(st.integers(1, 60))):
        event = history.event()
        actions = coordinator.handle(event)
        assert actions == twin.handle(event)
        twin = Coordinator.from_dict(json.loads(json.dumps(twin.to_dict())))
        history.take(list(actions))
        if coordinator.finished:
            return
        if per_round is not None and per_round >= 1 and any(isinstance(action, Dispatch) for action in actions):
            assert coordinator._census.busy <= per_round
        # Nobody waits for nothing: whoever could work does, as long as there is a place.
        assert not len(coordinator._census.ready) or coordinator._free_places() < 1


def test_those_who_take_part_are_drawn_evenly() -> None:
    """2,000 synchronous rounds of 3 out of 10: each client takes part in 600 of them, give or take 3σ ≈ 61."""
    rules = Rules(Trigger.synchronous(), "at-aggregation", rounds=2000, clients_per_round=3, seed=1)
    coordinator, taken = Coordinator(rules), dict.fromkeys(map(str, range(10)), 0)
    actions = [action for name in taken for action in coordinator.handle(ClientJoined(name))]
    while coordinator.finished is None:
        given_out = [action for action in actions if isinstance(action, Dispatch)]
        assert len({action.client for action in given_out}) == 3
        actions = []
        for action in given_out:
            taken[action.client] += 1
            actions += coordinator.handle(UpdateArrived(action.client, action.task))
    assert all(539 <= count <= 661 for count in taken.values())


def test_a_failed_client_is_replaced_in_its_round() -> None:
    rules = Rules(Trigger.synchronous(), "at-aggregation", rounds=1, clients_per_round=1, max_failures=1)
    coordinator = Coordinator(rules)
    (first,) = coordinator.handle(ClientJoined("a"))
    assert isinstance(first, Dispatch)
    assert coordinator.handle(ClientJoined("b")) == []
    _, second = coordinator.handle(TaskFailed("a", first.task, "broke"))
    assert isinstance(second, Dispatch)
    assert second.client == "b"
    assert "Merge" in [type(action).__name__ for action in coordinator.handle(UpdateArrived("b", second.task))]
    assert coordinator.finished == "rounds"


@pytest.mark.parametrize("value", [0, -1, 1.5, 0.0])
def test_a_senseless_number_of_clients_is_refused(value: float) -> None:
    with pytest.raises(ValidationError, match="clients_per_round"):
        ScheduleSettings(rounds=1, clients_per_round=value)


def test_an_idle_device_costs_a_checkpoint_nothing() -> None:
    roster = [f"device-{i}" for i in range(10_000)]
    rules = Rules(Trigger.synchronous(), "at-aggregation", rounds=9, clients_per_round=10)
    coordinator = Coordinator(rules, roster)
    for name in roster:
        coordinator.handle(ClientJoined(name))
    assert len(json.dumps(coordinator.to_dict())) < 2000
