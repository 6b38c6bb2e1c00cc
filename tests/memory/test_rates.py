"""A device without a rate gets the largest that its memory and the wanted time allow."""

from __future__ import annotations

from typing import Any

import pytest

from cos2p import model_config
from cos2p.costs.budget import largest_rate
from cos2p.costs.shape import WHOLE
from cos2p.costs.workload import Workload
from cos2p.devices.device import device
from cos2p.errors import BudgetError
from cos2p.memory import rates
from cos2p.memory.rates import choose_rate, task_seconds
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import build_run_setup, first_weights
from cos2p.server.protocol import ClientJoined, Send
from cos2p.server.server import Server
from cos2p.submodel.rates import LADDER
from tests.runtime.small import VALUES, small

CONFIG = model_config("vit-tiny")


def chosen(memory: str, flops: float = 1e12, target: float = 0.0) -> float:
    group = {"preset": "laptop", "count": 1, "batch": 8, "memory": memory, "flops": flops}
    recipe = small(fleet={"devices": [group], "target_seconds": target})
    board = device("board", flops=flops, memory=memory, down="10MB/s", up="10MB/s")
    return choose_rate(
        CONFIG, board, recipe.fleet.devices[0].batch, recipe.training, recipe.fleet.target_seconds, samples=64
    )


def test_more_memory_never_means_a_smaller_rate() -> None:
    rates = [chosen(memory) for memory in ("200MB", "300MB", "500MB", "1GB", "4GB")]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1] == 1.0


def test_the_rate_fits_and_the_next_one_does_not() -> None:
    rate = chosen("400MB")
    workload = Workload(
        batch=8, samples=64, epochs=VALUES["training"]["epochs"], keep_start=True, distill=True, rescale=True
    )
    limit = largest_rate(CONFIG, "400MB", workload, tier_blocks=tuple(range(1, CONFIG.depth + 1)))
    assert rate <= limit
    bigger = [step for step in LADDER if step > rate]
    assert bigger, "pick a memory that does not fit the whole model"
    assert min(bigger) > limit


@pytest.mark.parametrize("memory", ["12MB", "15MB", "16.5MB", "19MB"])
def test_what_was_chosen_is_not_refused_when_the_run_begins(memory: str) -> None:
    weak = {"preset": "raspberry-pi-4", "count": 3, "batch": 16, "memory": memory}
    strong = {"preset": "laptop", "count": 2, "rate": 0.5625, "batch": 32}
    values = {"name": "office", "model": {"size": "vit-nano"}, "data": {"train_samples": 300}}
    recipe = Recipe.parse({**values, "fleet": {"devices": [weak, strong]}, "schedule": {"rounds": 1}})
    run_setup = build_run_setup(recipe)
    server = Server(run_setup.context, run_setup.method(), first_weights(recipe, run_setup.config))
    effects = [effect for name in run_setup.context.members for effect in server.handle(ClientJoined(name))]
    assert sum(isinstance(effect, Send) for effect in effects) == 5


def test_a_wanted_time_takes_what_memory_would_allow() -> None:
    slow: dict[str, Any] = {"memory": "4GB", "flops": 1e10}
    unhurried, hurried = chosen(**slow), chosen(**slow, target=120.0)
    assert hurried < unhurried
    board = device("board", flops=1e10, memory="4GB", down="10MB/s", up="10MB/s")
    workload = Workload(batch=8, samples=64, epochs=VALUES["training"]["epochs"])
    assert task_seconds(CONFIG, board, hurried, workload) <= 120.0


def test_a_device_too_small_for_anything_is_named() -> None:
    with pytest.raises(BudgetError, match=r"board cannot train even 0\.0156 .* 20\.0 MB"):
        chosen("20MB")


def test_a_thousand_unequal_memories_cost_a_few_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []

    def limit(config: object, memory: int, *rest: object) -> float:
        searched.append(memory)
        return memory / 1000

    monkeypatch.setattr(rates, "rate_limit", limit)
    rungs = rates._Rungs(CONFIG, Workload(batch=4), WHOLE)
    for memory in range(0, 1100, 7):
        assert rungs.highest(memory) == next((rate for rate in rates.LADDER if rate <= memory / 1000), 0.0)
    before = len(searched)
    for memory in range(1, 1000, 7):
        assert rungs.highest(memory) == next((rate for rate in rates.LADDER if rate <= memory / 1000), 0.0)
    assert len(searched) - before <= len(rates.LADDER)
