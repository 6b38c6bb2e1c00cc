from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cos2p.aggregation.merge import Contribution, SegmentMerge
from cos2p.errors import BudgetError
from cos2p.messages import Task, Update
from cos2p.methods.cos2p import Cos2p
from cos2p.server.protocol import (
    ClientJoined,
    ClientLeft,
    Effect,
    Finish,
    StartTimer,
    Stop,
    TaskFailed,
    TimerFired,
)
from cos2p.server.server import Server
from cos2p.server.update_reader import kept_report
from cos2p.submodel.slicing import extract, extract_prefix
from cos2p.tracking.checkpoint import Checkpoint
from cos2p.tracking.event_kinds import Aggregated
from tests.runtime.played import answer, join_all, notes, restored, sent, server, snapshot
from tests.tiny import VIT, context, same


def receive(played: Server, client: str) -> list[Effect]:
    return played.receive(client, answer(played, client).to_bytes())


# ---------------------------------------------------------------- a scripted run


def test_a_late_update_is_merged_with_its_staleness_and_the_version_it_was_cut_from() -> None:
    played = server()
    orders = {order.client: order for order in sent(join_all(played))}
    assert {order.version for order in orders.values()} == {0}
    zero = played.weights
    late = answer(played, "pi-2")

    assert [type(effect).__name__ for effect in receive(played, "pi-0")] == ["Merged", "Send"]
    effects = receive(played, "pi-1")  # two of three: T_clk begins
    assert [effect for effect in effects if isinstance(effect, StartTimer)] == [StartTimer("round 0", 10.0)]
    effects = played.handle(TimerFired("round 0"))
    assert [effect.version for effect in effects if isinstance(effect, Aggregated)] == [1]
    one = played.weights
    assert not same(zero, one)
    assert played.versions.held == (0, 1)

    (note,) = notes(played.receive("pi-2", late.to_bytes()), "merged")
    assert (note["staleness"], note["version"], note["window"]) == (1, 0, [0, 4])
    by_hand = SegmentMerge(VIT)
    gamma = by_hand.add(Contribution("pi-2", late.spec, late.delta, 10, 1, received=zero), one)
    assert note["weight"] == gamma
    fresh = SegmentMerge(VIT).add(Contribution("pi-2", late.spec, late.delta, 10, 0, received=one), one)
    assert gamma["heads"] < fresh["heads"]

    played.handle(Stop("enough"))
    assert same(played.weights, by_hand.apply(one))


def test_notes_say_what_happened() -> None:
    played = server(mu=1.0, t_clk=0.0)
    join_all(played)
    report = {"loss": 0.5, "local_top1": 1, "text": "no number"}
    contract = played.orders.contract(played.orders["pi-0#0"])
    assert kept_report({**report, "nan": math.nan, "huge": 10**400}, contract) == {"loss": 0.5, "local_top1": 1}
    update = replace(answer(played, "pi-0"), report=report)
    (note,) = notes(played.receive("pi-0", update), "merged")
    assert note["report"] == {"loss": 0.5, "local_top1": 1}
    json.dumps(note, allow_nan=False)
    receive(played, "pi-1")
    (note,) = notes(receive(played, "pi-2"), "aggregated")
    assert (note["round"], note["version"], note["clients"], note["updates"]) == (0, 1, ["pi-0", "pi-1", "pi-2"], 3)
    json.dumps(note, allow_nan=False)


def test_coverage_by_hand() -> None:
    """pi-0 trains blocks 0 and 1, pi-1 blocks 1 and 2 (half of each), pi-2 everything."""
    played = server(mu=1.0, t_clk=0.0)
    join_all(played)
    windows = {client: answer(played, client).spec for client in ("pi-0", "pi-1", "pi-2")}
    assert [(spec.frozen, spec.top) for spec in windows.values()] == [(0, 2), (2, 4), (0, 4)]
    receive(played, "pi-0")
    receive(played, "pi-1")
    (note,) = notes(receive(played, "pi-2"), "aggregated")
    # Made-up answers keep the first candidates: heads 0, 1 and units 0 to 4 of each block in the window.
    assert note["heads"] == [[2, 2, 1, 1]] * 4
    assert note["units"] == [[1, 1.5]] * 4
    assert note["n_star"] == 1


# ---------------------------------------------------------------- versions and orders in flight


events = st.lists(
    st.tuples(st.sampled_from(["answer", "garbage", "fail", "leave", "join", "timer"]), st.integers(0, 2)), max_size=25
)


def play(played: Server, what: str, client: str) -> list[Effect]:
    if what in ("answer", "garbage"):
        if client not in {order.client for order in played.orders.values()}:
            return []
        return receive(played, client) if what == "answer" else played.receive(client, b"garbage")
    if what == "fail":
        ticket = played.coordinator.in_flight().get(client)
        return [] if ticket is None else played.handle(TaskFailed(client, ticket.task, "out of battery"))
    if what == "timer":
        return played.handle(TimerFired(f"round {played.coordinator.version}"))
    return played.handle(ClientLeft(client) if what == "leave" else ClientJoined(client))


@settings(max_examples=25)
@given(events)
def test_only_versions_that_are_needed_and_the_current_one_are_held(script: list[tuple[str, int]]) -> None:
    played = server(rounds=100)
    join_all(played)
    for what, number in script:
        play(played, what, f"pi-{number}")
        needed = {order.version for order in played.orders.values()} | played.aggregator.robust_filter.versions
        assert set(played.versions.held) == needed | {played.versions.current}
        assert {order.client for order in played.orders.values()} == played.coordinator.in_flight().keys()
        for order in played.orders.values():
            task = played.orders.task(order)  # can be made again as long as it is open
            assert same(task.weights, extract(played.versions[order.version], VIT, order.spec))


def test_versions_share_what_did_not_change() -> None:
    played = server(rates=(0.0625, 0.0625, 0.0625), mu=1 / 3, t_clk=0.0)
    join_all(played)
    spec = answer(played, "pi-0").spec
    receive(played, "pi-0")
    zero, one = played.versions[0], played.versions[1]
    trained = extract(zero, VIT, spec)
    assert all((one[name] is zero[name]) == (name not in trained) for name in zero)


# ---------------------------------------------------------------- checkpoint


@settings(max_examples=25)
@given(events, st.integers(0, 25), st.sampled_from(["cos2p", "cos2p-async", "cos2p-sync", "fedavg"]))
def test_a_restored_server_goes_on_as_if_nothing_had_happened(
    script: list[tuple[str, int]], cut: int, method: str
) -> None:
    settings = {} if method == "fedavg" else {"window": {"schedule": "balanced"}}
    whole, broken = (server(method=method, settings=settings, rounds=100) for _ in range(2))
    join_all(whole)
    join_all(broken)
    for number, (what, client) in enumerate(script):
        if number == cut:
            broken = restored(broken, fresh=server(method=method, settings=settings, rounds=100))
        assert play(whole, what, f"pi-{client}") == play(broken, what, f"pi-{client}")
    (values, groups), (values_too, groups_too) = snapshot(whole), snapshot(broken)
    assert values == values_too
    assert groups.keys() == groups_too.keys()
    assert all(same(groups[name], groups_too[name]) for name in groups)


def test_a_task_made_again_after_a_restart_is_the_same_bit_for_bit(tmp_path: Any) -> None:
    played = server(settings={"prefix": {"precision": "int8"}}, redispatch="at-aggregation")
    join_all(played)
    receive(played, "pi-0")
    receive(played, "pi-1")
    played.handle(TimerFired("round 0"))
    values, groups = played.state()
    Checkpoint(values, groups).write(tmp_path / "checkpoint")
    read = Checkpoint.read(tmp_path / "checkpoint")
    again = server(settings={"prefix": {"precision": "int8"}})
    again.load_state(read.values, read.groups)
    assert {order.version for order in again.orders.values()} == {0, 1}
    for name, order in played.orders.items():
        assert again.orders.task(again.orders[name]).to_bytes() == played.orders.task(order).to_bytes()
    zero, one = again.versions[0], again.versions[1]
    shared = {name for name in zero if played.versions[0][name] is played.versions[1][name]}
    assert shared
    assert {name for name in zero if zero[name] is one[name]} == shared


# ---------------------------------------------------------------- what a task is made of


def test_a_task_is_cut_from_the_version_it_names() -> None:
    played = server(settings={"prefix": {"precision": "float32"}})
    (order,) = (order for order in sent(join_all(played)) if order.spec.frozen == 2)
    zero = played.weights
    receive(played, "pi-0")
    receive(played, "pi-2")
    played.handle(TimerFired("round 0"))
    task = played.orders.task(order)
    assert played.versions.current == 1
    assert same(task.weights, extract(zero, VIT, order.spec))
    assert same(task.prefix, extract_prefix(zero, VIT, order.spec))
    task.weights["blocks.2.q.weight"].zero_()  # what a device does to it cannot reach the model
    assert played.weights["blocks.2.q.weight"].any()
    assert Task.from_bytes(played.orders.task(order).to_bytes()).order == order


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [({"rounds": 4}, 0.25), ({"rounds": 4, "updates": 6}, 0.5), ({"rounds": None, "updates": 12}, 0.25)],
)
def test_progress_is_that_of_rounds_or_updates_whichever_is_further(schedule: dict[str, Any], expected: float) -> None:
    played = server(mu=1.0, t_clk=0.0, **schedule)
    join_all(played)
    assert played.progress == 0.0
    for client in ("pi-0", "pi-1", "pi-2"):
        receive(played, client)
    assert played.progress == pytest.approx(expected)


def test_the_learning_rate_falls_with_progress() -> None:
    training = {"lr": 0.2, "lr_schedule": "cosine"}
    played = server(context(training=training, mu=1.0, t_clk=0.0, rounds=2, redispatch="at-aggregation"))
    assert {order.lr for order in sent(join_all(played))} == {0.2}
    receive(played, "pi-0")
    receive(played, "pi-1")
    orders = sent(receive(played, "pi-2"))
    assert played.progress == 0.5
    assert [order.lr for order in orders] == pytest.approx([0.1] * 3)


def test_a_run_ends_with_its_rounds_and_its_updates() -> None:
    for schedule, reason in (({"rounds": 1}, "rounds"), ({"rounds": None, "updates": 3}, "max_updates")):
        played = server(mu=1.0, t_clk=0.0, **schedule)
        join_all(played)
        effects = [effect for client in ("pi-0", "pi-1", "pi-2") for effect in receive(played, client)]
        assert [effect for effect in effects if isinstance(effect, Finish)] == [Finish(reason)]
        assert played.orders == {}
        assert played.versions.held == (1,)


# ---------------------------------------------------------------- memory, newcomers


def test_a_task_that_does_not_fit_its_device_is_not_given_out() -> None:
    given = context()
    member = given.members["pi-0"]
    small = replace(member, device=member.device.model_copy(update={"memory": 100_000}))
    cramped = replace(given, members={**given.members, "pi-0": small})
    with pytest.raises(BudgetError, match="pi-0: "):
        join_all(server(cramped))
    with pytest.raises(BudgetError, match="pi-0: "):
        join_all(server(cramped, method="fedavg"))
    assert join_all(server(replace(cramped, as_bound=True), method="fedavg"))  # a bound to compare with


def test_a_newcomer_is_welcome_and_what_is_known_of_the_others_stays() -> None:
    played = server()
    join_all(played)
    receive(played, "pi-0")
    assert isinstance(played.method, Cos2p)
    masks = dict(played.method.masks["pi-0"])
    assert masks
    newcomer = replace(played.context.members["pi-0"], name="pi-9")
    played.welcome(newcomer)
    (order,) = sent(played.handle(ClientJoined("pi-9")))
    assert order.client == "pi-9"
    assert played.method.masks["pi-0"] == masks
    assert notes(receive(played, "pi-9"), "merged")


def test_an_update_as_a_value_is_as_good_as_its_bytes() -> None:
    by_value, by_bytes = server(), server()
    for played in (by_value, by_bytes):
        join_all(played)
    update = answer(by_value, "pi-0")
    assert by_value.receive("pi-0", update) == by_bytes.receive("pi-0", update.to_bytes())
    assert isinstance(update, Update)
