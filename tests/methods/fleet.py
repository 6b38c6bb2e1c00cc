"""The fleet of `cos2p.testing` with a few digits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from cos2p.aggregation.settings import ScheduleSettings
from cos2p.methods.base import RunContext
from cos2p.models.layout import Weights
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import RunSetup, build_run_setup
from cos2p.testing import fleet as testing
from cos2p.training.shard import Shard
from tests.tiny import TRUSTED, same


@cache
def digits() -> RunSetup:
    """Three devices of rates 1/8, 1/4 and 1/2 with a few digits each, and a model of two blocks."""
    device = {"preset": "laptop", "batch": 16, "flops": 1e9}
    return build_run_setup(
        Recipe.parse(
            {
                "name": "digits for methods",
                "model": {"size": "vit-nano", "depth": 2, "dim": 16, "heads": 4, "mlp": 32, "patch": 4},
                "data": {"source": "digits", "train_samples": 120, "test_samples": 40},
                "fleet": {"devices": [{**device, "rate": rate} for rate in (0.125, 0.25, 0.5)]},
                "training": {"epochs": 1},
                "schedule": {"rounds": 2},
            }
        )
    )


def digits_house(**schedule: Any) -> RunContext:
    settings = ScheduleSettings.model_validate({"redispatch": "at-once", **schedule})
    return replace(digits().context, schedule=settings, robust=TRUSTED)


def with_rates(context: RunContext, *rates: float) -> RunContext:
    """The first devices of a context, with these rates."""
    members = list(context.members.values())[: len(rates)]
    return replace(context, members={m.name: replace(m, rate=rate) for m, rate in zip(members, rates, strict=True)})


class Fleet(testing.Fleet):
    """With the digits, if nothing else is said."""

    def __init__(
        self, context: RunContext, method: Mapping[str, Any], shards: Mapping[str, Shard] | None = None,
        weights: Weights | None = None,
    ) -> None:  # fmt: skip
        super().__init__(context, method, digits().shards if shards is None else shards, weights)

    def run(self, answers: int | None = None) -> Fleet:
        super().run(answers)
        return self


def check_a_restart_changes_nothing(
    settings: Mapping[str, Any], folder: Path, updates: int = 6, house: RunContext | None = None
) -> None:
    """A server that is stopped after four answers and built again goes on as if nothing had been."""
    house = house or digits_house(updates=updates)
    straight = Fleet(house, settings).run()
    broken = Fleet(house, settings).run(answers=4)
    broken.restart(folder)
    broken.run()
    assert same(broken.server.weights, straight.server.weights)
    assert [order.spec for order in broken.orders] == [order.spec for order in straight.orders]
