"""Named forms of Co-S²P, and what they are made of."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cos2p.errors import ConfigError, RecipeError
from cos2p.methods.cos2p import Cos2pSettings
from cos2p.recipe import Recipe
from cos2p.terminal.recipe_plan import plan_text
from tests.methods.fleet import Fleet, check_a_restart_changes_nothing, digits_house
from tests.methods.test_cos2p import assign, method
from tests.tiny import VIT, context


def test_the_paper_is_the_default_and_a_form_is_a_beginning() -> None:
    assert Cos2pSettings() == Cos2pSettings(form="paper")
    chosen = Cos2pSettings.model_validate({"form": "pretrained", "window": {"schedule": "top"}})
    assert (chosen.window.rest, chosen.window.schedule) == ("kept", "top")
    assert chosen.exits.start == "discriminant"
    assert Cos2pSettings.model_validate(chosen.model_dump()) == chosen  # what a run writes down gives the same


def test_a_pretrained_model_has_the_form_for_it_and_the_recipe_shows_it() -> None:
    values = Recipe.load("quickstart").model_dump(mode="json")
    values["model"] = {"pretrained": "some-folder"}
    values["method"] = {"name": "cos2p"}
    assert Recipe.parse(values).method["window"]["rest"] == "kept"
    assert Recipe.parse({**values, "method": {"name": "cos2p", "form": "paper"}}).method["window"]["rest"] == "removed"
    assert Recipe.parse({**values, "method": {"name": "fedavg"}}).method["name"] == "fedavg"
    with pytest.raises(RecipeError, match="form"):
        Recipe.parse({**values, "method": {"name": "cos2p", "form": "other"}})


def test_a_pretrained_language_model_has_no_classes_to_begin_from() -> None:
    values = Recipe.load("quickstart").model_dump(mode="json")
    values["model"] = {"pretrained": "some-folder"}
    values["data"] |= {"task": "language-modeling", "source": "text", "path": "here", "train": "a.txt"}
    assert Recipe.parse({**values, "method": {"name": "cos2p"}}).method["exits"]["start"] == "fresh"


def test_a_plan_names_a_form_that_is_not_the_papers() -> None:
    assert "Co-S²P (cos2p), form pretrained, seed 0" in plan_text(Recipe.load("minilm-banking77"))[0]
    assert "form" not in plan_text(Recipe.load("quickstart"))[0]


def test_all_devices_are_at_the_same_block_in_a_round_whatever_their_cycle() -> None:
    to = method(context(VIT, (0.0625, 0.0625)), window={"schedule": "together"})
    tops = [
        {assign(to, cycle=cycle, version=version).spec.top for cycle in range(3)} for version in range(VIT.depth + 1)
    ]
    assert tops[:3] == [{VIT.depth}, {VIT.depth - 1}, {VIT.depth - 2}]
    assert tops[VIT.depth] == tops[0]


def test_a_first_block_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"method.window.first is 99"):
        method(context(VIT, (0.25,)), window={"first": 99})


FINISH = {"name": "cos2p", "exits": {"finish": "discriminant"}}


def test_in_the_last_round_everybody_tells_and_nobody_trains() -> None:
    fleet = Fleet(digits_house(rounds=4, mu=0.3, t_clk=0.0, redispatch="at-once"), FINISH).run()
    last = [order for order in fleet.orders if order.version == 3]
    assert {order.trainer for order in last} == {"statistics"}
    assert sorted(order.client for order in last) == sorted(fleet.context.members)
    assert all(order.trainer == "submodel" for order in fleet.orders if order.version < 3)


def test_a_restart_before_the_last_round_changes_nothing(tmp_path: Path) -> None:
    settings = {"name": "cos2p", "exits": {"start": "means", "finish": "means"}, "window": {"schedule": "together"}}
    straight = Fleet(digits_house(rounds=3), settings).run()
    broken = Fleet(digits_house(rounds=3), settings).run(answers=7)
    broken.restart(tmp_path)
    broken.run()
    assert all(torch.equal(a, broken.server.weights[name]) for name, a in straight.server.weights.items())


def test_the_pretrained_form_survives_a_restart(tmp_path: Path) -> None:
    check_a_restart_changes_nothing({"name": "cos2p", "form": "pretrained"}, tmp_path, updates=8)


def test_the_cheap_form_survives_a_restart(tmp_path: Path) -> None:
    check_a_restart_changes_nothing({"name": "cos2p", "form": "cheap"}, tmp_path, updates=8)
