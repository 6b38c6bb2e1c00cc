"""Training that is over before its time, out of patience or of time, still ends with a head that is told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from cos2p.server.protocol import ClientLeft, Enough
from cos2p.tracking.figures import RunFigures
from tests.methods.fleet import Fleet, digits_house
from tests.methods.played import of, play
from tests.methods.test_closed_heads import BOTH, closed_top

REDISPATCH = ("at-once", "at-aggregation")


def reported_enough(answers: int, redispatch: str, method: Mapping[str, Any] = BOTH) -> Fleet:
    house = digits_house(updates=60, mu=0.5, t_clk=0.0, redispatch=redispatch)
    fleet = Fleet(house, method).run(answers)
    fleet._carry_out(fleet.server.handle(Enough("out of patience")))
    return fleet


@pytest.mark.parametrize("redispatch", REDISPATCH)
@pytest.mark.parametrize("answers", [3, 7, 8, 9])
def test_who_is_at_work_answers_and_then_all_tell(answers: int, redispatch: str) -> None:
    fleet = reported_enough(answers, redispatch)
    at_work = len(fleet._pending)
    while not fleet.server.coordinator.in_final_round:
        fleet.answer()
    before = dict(fleet.server.weights)
    fleet.run()
    last = [order for order in fleet.orders if order.settings.get("final")]
    assert sorted(order.client for order in last) == sorted(fleet.context.members)
    assert fleet.orders[-3:] == last
    assert fleet.done == "out of patience"
    assert len(fleet.orders) == answers + at_work + 3, "nobody was given more training"
    assert fleet.server.coordinator.merged == len(fleet.orders), "late work is merged"
    head, wanted = fleet.server.weights["exits.2.linear.weight"], closed_top(fleet, before)
    assert (head - wanted).abs().max() < 0.02 * wanted.abs().max()
    assert not fleet.server.orders


@pytest.mark.parametrize("answers", [0, 1, 3])
def test_a_restart_on_the_way_changes_nothing(answers: int, tmp_path: Path) -> None:
    straight, broken = reported_enough(7, "at-once").run(), reported_enough(7, "at-once").run(answers)
    broken.restart(tmp_path)
    broken.run()
    assert broken.done == straight.done == "out of patience"
    assert all(torch.equal(a, broken.server.weights[name]) for name, a in straight.server.weights.items())


def test_who_is_gone_has_trained_in_vain_and_is_not_waited_for() -> None:
    """The one device at work leaves: nothing is to be merged, so that the last round begins with the same version."""
    fleet = reported_enough(8, "at-aggregation")
    while len(fleet._pending) > 1:
        fleet.answer()
    gone = fleet._pending.popleft().client
    fleet._carry_out(fleet.server.handle(ClientLeft(gone)))
    assert fleet.server.coordinator.in_final_round
    fleet.run()
    assert fleet.done == "out of patience"
    last = [order.client for order in fleet.orders if order.settings.get("final")]
    assert sorted(last) == sorted(fleet.context.members.keys() - {gone})


def test_nobody_there_to_tell_ends_it_at_once() -> None:
    fleet = Fleet(digits_house(updates=60, mu=1.0, t_clk=0.0, redispatch="at-aggregation"), BOTH).run(3)
    for client in fleet.context.members:
        fleet._carry_out(fleet.server.handle(ClientLeft(client)))
    assert fleet.done is None
    fleet._carry_out(fleet.server.handle(Enough("virtual time")))
    assert fleet.done == "virtual time"


def test_a_run_without_a_last_round_of_its_own_ends_at_once() -> None:
    fleet = reported_enough(7, "at-once", {"name": "cos2p"})
    assert fleet.done == "out of patience"
    assert fleet.server.coordinator.merged == 7


def test_in_the_last_round_it_changes_nothing() -> None:
    fleet = Fleet(digits_house(updates=12, mu=1.0, t_clk=0.0, redispatch="at-aggregation"), BOTH).run(10)
    assert fleet.server.coordinator.in_final_round
    fleet._carry_out(fleet.server.handle(Enough("virtual time")))
    assert fleet.run().done == "max_updates"


@pytest.mark.parametrize("reason", ["virtual time", "patience"])
def test_in_a_simulation(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {"virtual_seconds": 12.0} if reason == "virtual time" else {"patience": 1}
    if reason == "patience":
        monkeypatch.setattr(RunFigures, "out_of_patience", lambda figures, patience: figures.rounds >= 3)
    simulation, events = play(BOTH, schedule={"rounds": 40, "evaluate_every": 1, **ends})

    assert simulation.finished == (reason if reason == "virtual time" else "no better validation score for a while")
    tasks = of(events, "dispatched")
    assert len({task["client"] for task in tasks[-4:]}) == 4
    assert all(task["window"][0] == task["window"][1] for task in tasks[-4:]), "the last tasks train nothing"
    assert 2 < of(events, "aggregated")[-1]["round"] < 39
    if reason == "virtual time":
        assert max(task["t"] for task in tasks[:-4]) <= 12.0 < tasks[-1]["t"]
