"""A model that grows from the bottom: where its windows stand, and that it is whole at every moment."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cos2p.errors import ConfigError, RecipeError
from cos2p.methods.base import RunContext
from cos2p.methods.cos2p.method import passing_on
from cos2p.models.layout import init_weights
from cos2p.models.spec import SubmodelSpec
from cos2p.models.transformer import ElasticTransformer
from cos2p.recipe import Recipe
from cos2p.submodel.rates import growing_top
from tests.methods.fleet import Fleet, digits_house, with_rates
from tests.methods.test_cos2p import assign, method
from tests.submodel.strategies import CONFIGS, random_inputs
from tests.tiny import VIT, context

GROWING: dict[str, Any] = {"name": "cos2p", "form": "growing"}
SHARED = VIT.with_(exits="shared")


@given(st.integers(1, 12), st.data(), st.floats(0, 0.99))
def test_a_model_grows_one_block_after_the_other_to_its_top(depth: int, data: st.DataObject, stay: float) -> None:
    reach = data.draw(st.integers(1, depth))
    tops = [growing_top(depth, reach, step / 1000, stay) for step in range(1001)]
    assert tops[0] == reach if stay > 0 else tops[0] <= depth
    assert tops[-1] == depth
    assert all(0 <= after - before <= 1 for before, after in pairwise(tops) if stay < 0.98)
    assert all(top == reach for step, top in enumerate(tops) if step / 1000 < stay)


def test_windows_of_all_devices_end_at_one_height_which_rises() -> None:
    to = method(context(SHARED, (0.0625, 0.5), rounds=10), form="growing")
    assert len({size.blocks for size in to.cuts.values()}) == 2
    tops: list[int] = []
    for version in range(10):
        ends = {assign(to, client=f"pi-{client}", cycle=3, version=version).spec.top for client in range(2)}
        assert len(ends) == 1
        tops += ends
    assert tops[:5] == [to.reach] * 5
    assert tops == sorted(tops)
    assert tops[-1] == SHARED.depth


@pytest.mark.parametrize("name", CONFIGS)
def test_blocks_that_are_not_reached_pass_on_what_they_get(name: str) -> None:
    """Every height above gives the answer of the height that was reached; those of BERT norm it once more."""
    config = CONFIGS[name].with_(exits="shared")
    weights = passing_on(config, init_weights(config, 3), 1, 3)
    model = ElasticTransformer(config, SubmodelSpec.full(config, range(1, config.depth + 1))).load(weights)
    with torch.no_grad():
        lowest, *above = model(random_inputs(config, 3))
    close = 1e-3 if config.family == "bert" else 0.0
    assert all((other - lowest).abs().max() <= close for other in above)


def test_an_empty_block_learns_from_its_first_step() -> None:
    weights = passing_on(SHARED, init_weights(SHARED, 0), 1, 0)
    model = ElasticTransformer(SHARED, SubmodelSpec.full(SHARED)).load(weights)
    model(random_inputs(SHARED, 0))[-1].square().sum().backward()
    for name in ("o", "fc2"):
        gradient = model.get_parameter(f"blocks.1.{name}.weight").grad
        assert gradient is not None
        assert gradient.abs().max() > 0


def test_a_checkpoint_is_not_emptied() -> None:
    weights = init_weights(SHARED, 0)
    with pytest.raises(ConfigError, match="comes from a checkpoint, whose blocks it would lose"):
        passing_on(SHARED, weights, 1, seed=1)
    passing_on(SHARED, weights, SHARED.depth, seed=1)  # nothing to empty


def test_one_exit_reads_every_height_unless_the_recipe_says_otherwise() -> None:
    values = Recipe.load("quickstart").model_dump(mode="json", exclude={"method"})
    assert Recipe.parse({**values, "method": GROWING}).model.exits == "shared"
    by_schedule = {"name": "cos2p", "window": {"schedule": "growing"}}
    assert Recipe.parse({**values, "method": by_schedule}).model.exits == "shared"
    other = {**GROWING, "window": {"schedule": "rolling"}}
    assert Recipe.parse({**values, "method": other}).model.exits is None
    values["model"]["exits"] = "bank"
    with pytest.raises(ConfigError, match=r"set model.exits = 'shared'"):
        method(context(VIT, (0.25,)), form="growing").initial_weights(init_weights(VIT, 0))


def test_what_cannot_grow_is_refused() -> None:
    values = Recipe.load("quickstart").model_dump(mode="json", exclude={"method"})
    for window in ({"rest": "kept"}, {"first": 2}):
        with pytest.raises(RecipeError, match="builds a fresh model from its lowest block on"):
            Recipe.parse({**values, "method": {**GROWING, "window": window}})


def test_blocks_above_stay_empty_until_they_are_reached() -> None:
    fleet = Fleet(_house(rounds=4, mu=1.0, t_clk=0.0), GROWING)
    fleet.run(answers=3)
    assert [order.spec.top for order in fleet.orders[:3]] == [1, 1, 1]
    assert not fleet.server.weights["blocks.1.o.weight"].any()
    fleet.run()
    assert fleet.orders[-1].spec.top == 2
    assert fleet.server.weights["blocks.1.o.weight"].any()


def test_a_restart_changes_nothing(tmp_path: Path) -> None:
    straight = Fleet(_house(updates=9, mu=1.0, t_clk=0.0), GROWING).run()
    broken = Fleet(_house(updates=9, mu=1.0, t_clk=0.0), GROWING).run(answers=5)
    broken.restart(tmp_path)
    broken.run()
    assert [order.spec for order in straight.orders] == [order.spec for order in broken.orders]
    assert all(torch.equal(a, broken.server.weights[name]) for name, a in straight.server.weights.items())


def _house(**schedule: Any) -> RunContext:
    house = with_rates(digits_house(**schedule), 0.125, 0.125, 0.25)
    return replace(house, config=house.config.with_(exits="shared"))
