from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cos2p.errors import ConfigError, RecipeError
from cos2p.methods import methods
from cos2p.older_python import tomllib
from cos2p.recipe import Recipe, apply_change, recipe_problems, recipe_values, switch_method
from cos2p.recipes import recipe_text, shipped_recipes
from cos2p.runtime.model_folder import recipe_toml


@pytest.fixture
def values() -> dict[str, Any]:
    """The least a recipe has to say."""
    return {"name": "small", "fleet": {"devices": [{"count": 2}]}, "schedule": {"rounds": 3}}


def said(values: dict[str, Any]) -> list[str]:
    """The fields that are complained of."""
    return [line.partition(":")[0] for line in recipe_problems(values)]


# ---------------------------------------------------------------- in and out


def test_the_least_recipe_is_complete(values: dict[str, Any]) -> None:
    recipe = Recipe.parse(values)
    assert recipe.method["name"] == "cos2p"
    assert recipe.method["exits"]["temperature"] == 3.0  # the method's defaults are written out
    assert recipe.schedule.updates is None


@pytest.mark.parametrize("method", sorted(methods()))
def test_toml_out_and_in_again_is_the_same(values: dict[str, Any], method: str) -> None:
    recipe = Recipe.parse({**values, "method": {"name": method}})
    assert Recipe.parse(tomllib.loads(recipe_toml(recipe))) == recipe


def test_a_file_and_a_name_are_both_recipes(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(recipe_text("quickstart"), encoding="utf-8")
    assert Recipe.load(file) == Recipe.load("quickstart")
    assert "quickstart" in shipped_recipes()


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(RecipeError, match=r"cannot read the recipe nowhere\.toml: No such file"):
        Recipe.load("nowhere.toml")


# ---------------------------------------------------------------- changes


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("a.b=2", 2),
        ("a.b = 2.5e-3", 0.0025),
        ("a.b=true", True),
        ('a.b="2"', "2"),
        ("a.b=word", "word"),
        ("a.b=/some/path=x", "/some/path=x"),
        ("a.b=[1, 2]", [1, 2]),
        ("a.b={c = 1}", {"c": 1}),
    ],
)
def test_a_value_is_toml_or_a_bare_word(change: str, value: object) -> None:
    tables: dict[str, Any] = {"a": {"b": 9}}
    apply_change(tables, change)
    assert tables == {"a": {"b": value}}


def test_a_change_makes_tables_and_reaches_into_lists() -> None:
    tables: dict[str, Any] = {"fleet": {"devices": [{"rate": 0.1}, {"rate": 0.2}]}}
    apply_change(tables, "fleet.devices.1.rate=0.5")
    apply_change(tables, "method.masks.rounds=4")
    assert tables == {
        "fleet": {"devices": [{"rate": 0.1}, {"rate": 0.5}]},
        "method": {"masks": {"rounds": 4}},
    }


@pytest.mark.parametrize("change", ["schedule.rounds=", "schedule.rounds= "])
def test_nothing_takes_a_field_away(change: str) -> None:
    tables: dict[str, Any] = {"schedule": {"rounds": 4, "updates": 8}}
    apply_change(tables, change)
    assert tables == {"schedule": {"updates": 8}}


@pytest.mark.parametrize("change", ["rounds", "=3", "a..b=3", "name.x=3", "fleet.devices.9.rate=1", "name.x.y=1"])
def test_a_change_that_cannot_be_made_is_named(change: str) -> None:
    tables: dict[str, Any] = {"name": "x", "fleet": {"devices": [{}]}}
    with pytest.raises(ConfigError) as caught:
        apply_change(tables, change)
    assert change.partition("=")[0] in str(caught.value)


# ---------------------------------------------------------------- another method


def test_another_method_with_the_same_settings_keeps_them(values: dict[str, Any]) -> None:
    values["method"] = {"name": "cos2p", "exits": {"lambda2": 0.7}}
    switch_method(values, "cos2p-async")
    assert values["method"] == {"name": "cos2p-async", "exits": {"lambda2": 0.7}}


def test_another_method_with_other_settings_takes_its_defaults(values: dict[str, Any]) -> None:
    values["method"] = {"name": "cos2p", "exits": {"lambda2": 0.7}}
    switch_method(values, "fedavg")
    assert values["method"] == {"name": "fedavg"}


def test_changes_come_after_the_method() -> None:
    changed = recipe_values("quickstart", ["method.weights=samples"], method="fedavg")
    assert changed["method"] == {"name": "fedavg", "weights": "samples"}


def test_an_unknown_method_is_an_error(values: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match="did you mean 'fedavg'"):
        switch_method(values, "fedavgg")


# ---------------------------------------------------------------- what is wrong


def test_all_problems_in_one_error(values: dict[str, Any]) -> None:
    values |= {"seed": -1, "method": {"name": "cos2p", "exits": {"lambda2": 2}}, "model": {"size": "vit-huge"}}
    with pytest.raises(RecipeError) as caught:
        Recipe.parse(values, "mine.toml")
    message = str(caught.value)
    assert message.startswith("mine.toml: seed: ")
    assert "method.exits.lambda2: Input should be less than or equal to 1 (got 2)" in message
    assert "model.size: unknown model size 'vit-huge'" in message


def test_a_wrong_device_is_named_once(values: dict[str, Any]) -> None:
    values["fleet"]["devices"] = [{"rate": 0.5}, {"rate": 2.0}]
    assert recipe_problems(values) == ["fleet.devices.1.rate: Input should be less than or equal to 1 (got 2.0)"]


def test_an_empty_fleet_is_too_small(values: dict[str, Any]) -> None:
    values["fleet"]["devices"] = []
    assert said(values) == ["fleet.devices"]


@pytest.mark.parametrize(
    ("group", "word"),
    [
        ({"preset": "toaster"}, "unknown device 'toaster'"),
        ({"memory": "lots"}, "lots"),
        ({"name": "<script>"}, "name"),
    ],
)
def test_devices_that_cannot_be(values: dict[str, Any], group: dict[str, Any], word: str) -> None:
    values["fleet"]["devices"].append(group)
    (line,) = recipe_problems(values)
    assert line.startswith("fleet.devices.1: ")
    assert word in line


def test_a_run_without_an_end(values: dict[str, Any]) -> None:
    values["schedule"] = {"virtual_seconds": 60.0}
    (line,) = recipe_problems(values)
    assert "the run needs an end" in line


@pytest.mark.parametrize(
    ("model", "data", "fine"),
    [
        ({"size": "vit-mini", "patch": 7}, {}, True),  # 28 pixels may come from the data
        ({"size": "vit-mini", "patch": 5}, {}, True),  # so may 25
        ({"size": "vit-mini", "patch": 5}, {"image_size": 28}, False),
        ({"size": "vit-mini", "heads": 7}, {}, False),
    ],
)
def test_models_that_contradict_themselves(
    values: dict[str, Any], model: dict[str, Any], data: dict[str, Any], fine: bool
) -> None:
    values |= {"model": model, "data": {"source": "digits", **data}}
    assert said(values) == ([] if fine else ["model"])


@pytest.mark.parametrize("method", [3, "cos2p", [], {"name": 3}, {"name": "cosp"}, {}])
def test_a_method_that_is_none(values: dict[str, Any], method: object) -> None:
    values["method"] = method
    (line,) = recipe_problems(values)
    assert line.startswith("method")


def test_tables_of_the_wrong_kind_are_named_not_crashed_on(values: dict[str, Any]) -> None:
    assert said({"name": "x", "fleet": 3, "schedule": [], "model": "big", "data": 1}) == [
        "model",
        "data",
        "fleet",
        "schedule",
    ]
    values["fleet"] = {"devices": [3]}
    assert said(values) == ["fleet.devices.0"]


def test_the_word_none_is_a_value_where_a_field_has_it() -> None:
    assert Recipe.load("quickstart", ["method.exits.kind=none"]).method["exits"]["kind"] == "none"


def test_an_infinite_value_survives_the_recipe_as_used() -> None:
    recipe = Recipe.load("quickstart", ["method.window.ratio=inf"])
    assert Recipe.parse(tomllib.loads(recipe_toml(recipe))) == recipe


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ("schedule.round=3", "schedule.round: there is no such field; did you mean 'rounds'?"),
        ("data.txt_column=a", "did you mean 'text_column'?"),
        ("fleet.devices.0.bach=3", "did you mean 'batch'?"),
        ("method.mask.epochs=3", "did you mean 'masks'?"),
        ("nmae=x", "did you mean 'name'?"),
    ],
)
def test_a_misspelt_field_is_told_the_right_one(change: str, hint: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(hint)):
        Recipe.load("quickstart", [change])


def test_another_method_by_its_name_alone_is_told_of_the_option() -> None:
    with pytest.raises(ConfigError, match=r"keep the settings of 'cos2p'; take another method with --method fedavg"):
        Recipe.load("quickstart", ["method.name=fedavg"])


def test_a_pretrained_model_has_other_defaults_of_methods_that_say_so() -> None:
    base = {**recipe_values("quickstart"), "model": {"pretrained": "some/checkpoint"}}
    for method, expected in (("fedlora", "discriminant"), ("probe", "discriminant")):
        found = Recipe.parse({**base, "method": {"name": method}}).method
        assert (found["name"], found["start"]) == (method, expected)
    named = Recipe.parse({**base, "method": {"name": "fedlora", "start": "fresh", "form": "ffa"}}).method
    assert (named["start"], named["form"]) == ("fresh", "ffa")
    assert Recipe.parse({**base, "method": {"name": "cos2p"}}).method["form"] == "pretrained"
    assert Recipe.parse({**base, "method": {"name": "fedavg"}}).method["start"] == "discriminant"
    texts = {**base, "data": {"source": "text", "train": "a.txt", "test": "b.txt", "task": "language-modeling"}}
    assert Recipe.parse({**texts, "method": {"name": "fedlora"}}).method["start"] == "fresh"
    assert Recipe.parse({**texts, "method": {"name": "cos2p"}}).method["exits"]["start"] == "fresh"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("fleet.devices.0.spread.up=0.5", "spread.up: the field is called fleet.devices.spread.network now"),
        ("robust.trim=0.1", "robust.trim: gone since 0.1.0; a quarter is left out at each end"),
        ("training.savings.stream=true", "training.savings: the field is called training.memory_optimizations now"),
        ("training.label_skew=corrected", "training.label_skew: 'corrected' is called \"logit-adjustment\" now"),
        ("robust.suspicion=bench", "robust.suspicion: 'bench' is called \"exclude\" now"),
    ],
)
def test_an_old_name_is_refused_with_the_new_one(change: str, message: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(message)):
        Recipe.load("quickstart", [change])
