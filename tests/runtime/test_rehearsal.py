"""What a run would need, found out without training."""

from __future__ import annotations

from typing import Any

import pytest

from cos2p.errors import BudgetError
from cos2p.runtime.rehearsal import Rehearsal, rehearse
from tests.runtime.small import VALUES, small


def rehearsed(start: str, memory: int | None = None) -> Rehearsal:
    orin: dict[str, Any] = VALUES["fleet"]["devices"][1]
    device = orin | {"count": 1} | ({} if memory is None else {"memory": memory})
    return rehearse(small(fleet={"devices": [device]}, method={"name": "cos2p", "exits": {"start": start}}))


def test_behind_a_first_task_that_only_tells_the_one_that_trains_is_looked_at() -> None:
    """Sums of features take little; what has to fit is the training after them."""
    (told,) = rehearsed("means").tasks
    (plain,) = rehearsed("fresh").tasks
    assert told.flops == pytest.approx(plain.flops, rel=0.5), "one pass alone would be a small part of it"
    (fitting,) = rehearsed("means", memory=told.needed).tasks
    assert fitting.needed == told.needed
    with pytest.raises(BudgetError, match="jetson-agx-orin-64gb-1"):
        rehearsed("means", memory=told.needed - 1)
