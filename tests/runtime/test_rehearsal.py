"""What a run would need, found out without training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cos2p.aggregation.triggers import Trigger
from cos2p.errors import BudgetError
from cos2p.runtime.rehearsal import START, Rehearsal, rehearse, share_of_a_round
from cos2p.runtime.simulation import run
from cos2p.terminal.recipe_plan import rehearsal_text
from cos2p.units import format_bytes
from tests.runtime.small import VALUES, small


def rehearsed(start: str, memory: int | None = None) -> Rehearsal:
    orin: dict[str, Any] = VALUES["fleet"]["devices"][1]
    device = orin | {"count": 1} | ({} if memory is None else {"memory": memory})
    return rehearse(small(fleet={"devices": [device]}, method={"name": "cos2p", "exits": {"start": start}}))


def test_behind_a_first_task_that_only_tells_the_one_that_trains_is_looked_at() -> None:
    """Sums of features take little; what has to fit is the training after them."""
    reported, plain = (rehearsed(start).plans[0].plan for start in ("means", "fresh"))
    assert reported.flops == pytest.approx(plain.flops, rel=0.5), "one pass alone would be a small part of it"
    fitting = rehearsed("means", memory=reported.peak).plans[0].plan
    assert fitting.peak == reported.peak
    assert rehearsed("means", memory=reported.peak - 1).plans[0].plan.peak < reported.peak, "it saves where it has to"
    with pytest.raises(BudgetError, match="jetson-agx-orin-64gb-1"):
        rehearsed("means", memory=200_000)


def full(memory: int, **fleet: Any) -> Any:
    orin: dict[str, Any] = VALUES["fleet"]["devices"][1]
    recipe = small(fleet={"devices": [orin | {"count": 2, "memory": memory}], **fleet}, schedule={"rounds": 1})
    return recipe.model_copy(update={"method": {"name": "fedavg"}})


def test_a_method_that_cannot_keep_the_memory_is_refused_unless_it_is_a_bound(tmp_path: Path) -> None:
    needed = rehearse(full(10**9)).plans[0].plan.peak
    recipe = full(200_000)
    for attempt in (rehearse, lambda recipe: run(recipe, tmp_path / "refused")):
        with pytest.raises(
            BudgetError, match=r"needs .* the device has .*fleet\.enforce_memory = false.*cos2p compare"
        ):
            attempt(recipe)
    found = run(recipe, tmp_path / "bound", as_bound=True)["over_budget"]
    assert found == {"devices": 2, "needs": needed, "has": 200_000}


def test_a_task_over_the_memory_is_said_to_be_so() -> None:
    needed = rehearse(full(10**9)).plans[0].plan.peak
    over = rehearsal_text(rehearse(full(needed // 2, enforce_memory=False)))
    assert [line for line in over if f"over the budget: needs {format_bytes(needed)} of " in line]
    assert not any("budget" in line for line in rehearsal_text(rehearse(full(needed))))


def test_the_time_counts_what_devices_do_in_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics are a pass forward; a round of several devices closes when the trigger says so."""
    monkeypatch.setattr("cos2p.runtime.rehearsal._machine_flops", lambda: 1e9)
    plain, closed = (rehearsed(start) for start in ("fresh", "means"))
    assert plain.seconds == pytest.approx(START + plain.seconds_of_a_round * plain.rounds)
    assert (plain.statistics_rounds, closed.statistics_rounds) == (0, 1)
    assert closed.seconds == pytest.approx(START + closed.seconds_of_a_round * (closed.rounds - 2 / 3))


@pytest.mark.parametrize(
    ("trigger", "share"),
    [
        (Trigger.synchronous(), 1.0),
        (Trigger.semi_asynchronous(0.5, 0.0), 0.5),
        (Trigger.semi_asynchronous(0.5, 10.0), 0.75),
        (Trigger.asynchronous(), 0.125),
    ],
)
def test_share_of_eight_devices_whose_updates_a_round_has(trigger: Trigger, share: float) -> None:
    assert share_of_a_round(trigger, 8) == share
