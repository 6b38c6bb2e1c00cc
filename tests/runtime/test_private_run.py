"""A private run in simulation: its bound, its budget, what it leaves unsaid, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from cos2p.aggregation.privacy.account import multiplier_for
from cos2p.aggregation.settings import PrivacySettings
from cos2p.errors import RecipeError
from cos2p.runtime.run_setup import build_run_setup
from cos2p.runtime.simulation import Simulation
from cos2p.tracking.event_kinds import BUDGET_SPENT, Event, Left, Merged, Spent
from tests.runtime.small import InlineWorkers, small

pytest.importorskip("dp_accounting")

METHOD = {
    "name": "cos2p",
    "weighting": "uniform",
    "masks": {"heads": "fixed", "units": "random"},
}
SCHEDULE = {"rounds": 4, "redispatch": "at-aggregation", "evaluate_every": 100}


def played(**changes: Any) -> tuple[Simulation, list[Event]]:
    plain = {"method": METHOD, "schedule": SCHEDULE, "privacy": {"noise": "central", "epsilon": 8.0, "clip": 0.5}}
    values = {**plain, **changes}
    privacy, other = values.pop("privacy"), values.pop("other", None)
    recipe = small(**values).model_copy(update={"privacy": PrivacySettings.model_validate(privacy)})
    if other is not None:
        recipe = recipe.model_copy(update={"method": {"name": other}})
    run_setup, log = build_run_setup(recipe), []
    simulation = Simulation(run_setup, InlineWorkers(run_setup), log.append)  # type: ignore[arg-type]
    simulation.begin()
    simulation.play(lambda: None)
    return simulation, log


def test_the_account_is_of_what_happened_and_nothing_else_is_told() -> None:
    simulation, log = played(privacy={"noise": "central", "multiplier": 3.0, "clip": 0.5})
    merged = [event for event in log if isinstance(event, Merged)]
    spent = [event for event in log if isinstance(event, Spent)]
    assert len(spent) == 4
    counts = {client: sum(event.client == client for event in merged) for client in {e.client for e in merged}}
    assert {client: own["updates"] for client, own in spent[-1].devices.items()} == counts
    assert max(counts.values()) > min(counts.values())  # it is a semi-asynchronous run
    assert all(event.report.keys() <= {"prefix_recomputed", "uncached"} and event.size == 0.0 for event in merged)
    result = simulation.figures.result()
    assert result["privacy"]["epsilon"] == spent[-1].epsilon == max(d["epsilon"] for d in spent[-1].devices.values())
    assert result["client_top1"] is None
    assert simulation.finished == "rounds"


def test_a_run_ends_when_the_budget_is_spent() -> None:
    privacy = {"noise": "central", "epsilon": 4.0, "multiplier": multiplier_for(4.0, 1e-5, 2), "clip": 0.5}
    simulation, log = played(privacy=privacy, schedule={**SCHEDULE, "rounds": 50})
    assert simulation.finished == BUDGET_SPENT
    assert {event.client for event in log if isinstance(event, Left)} == set(simulation.run_setup.context.members)
    result = simulation.figures.result()["privacy"]
    assert 3.9 < result["epsilon"] <= 4.0
    assert all(own["updates"] == 2 for own in result["devices"].values())


def test_without_noise_the_cost_is_infinite() -> None:
    simulation, _ = played(privacy={"noise": "central", "multiplier": 0.0}, schedule={**SCHEDULE, "rounds": 1})
    assert simulation.figures.result()["privacy"]["epsilon"] is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": {**METHOD, "weighting": "paper"}}, "set method.weighting"),
        ({"method": {**METHOD, "weighting": "samples"}}, "depends on a device's data"),
        ({"method": {**METHOD, "masks": {"heads": "trainable"}}}, "'fixed' or 'random'"),
        ({"other": "prunefl"}, "methods that average plain updates can be private"),
        ({"other": "fedmezo"}, "methods that average plain updates can be private"),
        ({"schedule": {**SCHEDULE, "redispatch": "at-once"}}, "set it to 'at-aggregation'"),
    ],
)
def test_what_no_noise_covers_is_refused_with_the_reason(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        played(**changes)


def test_a_private_run_is_the_same_after_a_checkpoint() -> None:
    privacy = PrivacySettings.model_validate({"noise": "central", "multiplier": 1.0})
    recipe = small(method=METHOD, schedule=SCHEDULE).model_copy(update={"privacy": privacy})
    run_setup = build_run_setup(recipe)

    def fresh(log: list[Event]) -> Simulation:
        return Simulation(run_setup, InlineWorkers(run_setup), log.append)  # type: ignore[arg-type]

    whole: list[Event] = []
    reference = fresh(whole)
    reference.begin()
    reference.play(lambda: None)
    log: list[Event] = []
    simulation = fresh(log)
    simulation.begin()
    while simulation.server.versions.current < 2:
        simulation.step()
    saved = simulation.save()
    again = fresh(log)
    again.restore(saved.values, saved)
    again.figures.replay(log)
    again.play(lambda: None)
    assert again.figures.result()["privacy"] == reference.figures.result()["privacy"]
    assert all((again.server.weights[name] == tensor).all() for name, tensor in reference.server.weights.items())
