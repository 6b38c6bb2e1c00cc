"""The recipes that come with the package: each can run, says what it is, and holds the figures it claims."""

from __future__ import annotations

import pytest

from cos2p.methods import methods
from cos2p.models.sizes import SIZES
from cos2p.older_python import tomllib
from cos2p.recipe import Recipe, recipe_problems, recipe_values
from cos2p.recipes import recipe_text, shipped_recipes
from cos2p.runtime.run_setup import build_run_setup
from cos2p.submodel.rates import cut
from tests.methods.played import first_orders

SHIPPED = [
    "bert-small-agnews", "bert-small-agnews-mini", "bert-small-sst2", "bert-small-sst2-mini", "cifar10", "cifar10-mini",
    "demo", "dino-caltech101", "e1", "e2", "e3", "fashion-mini", "fashion-wide", "iot", "llama-fpb", 
    "minilm-banking77", "minilm-trec", "omniglot-drawers", "quickstart", "shakespeare-roles", "smollm-finance",
    "stories-shakespeare", "tinyllama-finance", "trec-depth",
]  # fmt: skip
CHECKPOINTS = {"llama-fpb": SIZES["llama-1.1b"]}
"""Shapes of the recipes' checkpoints, which come apart from the package."""
NX8, NX16, AGX, ORIN = (
    "jetson-xavier-nx-8gb",
    "jetson-xavier-nx-16gb",
    "jetson-agx-xavier-32gb",
    "jetson-agx-orin-64gb",
)


def test_these_are_shipped() -> None:
    assert shipped_recipes() == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_is_valid_named_like_its_file_and_described(name: str) -> None:
    assert recipe_problems(recipe_values(name)) == []
    recipe = Recipe.load(name)
    assert recipe.name == name
    assert 20 <= len(recipe.description) <= 120


@pytest.mark.parametrize("name", SHIPPED)
def test_every_method_can_take_its_place(name: str) -> None:
    for method in methods():
        assert Recipe.load(name, method=method).method["name"] == method


@pytest.mark.parametrize("name", SHIPPED)
def test_is_commented_and_gives_its_command(name: str) -> None:
    text = recipe_text(name)
    assert f"cos2p run {name}" in text
    assert text.count("# ") >= 15
    assert all(len(line) <= 120 for line in text.splitlines() if not line.startswith("description"))


def test_the_papers_fleets() -> None:
    """Table "Detailed implementation": (board, number, R, batch)."""
    fleets = {
        name: [(g.preset, g.count, g.rate, g.batch) for g in Recipe.load(name).fleet.devices]
        for name in ("e1", "e2", "e3", "bert-small-agnews", "bert-small-sst2")
    }
    e1 = [(NX8, 1, 1 / 16, 8), (AGX, 3, 9 / 16, 64), (ORIN, 4, 9 / 16, 128)]
    assert fleets == {
        "e1": e1,
        "bert-small-agnews": e1,
        "bert-small-sst2": e1,
        "e2": [(NX8, 1, 1 / 16, 8), (NX16, 2, 1 / 16, 32), (AGX, 3, 1 / 16, 64), (ORIN, 10, 9 / 16, 128)],
        "e3": [(NX8, 1, 1 / 64, 8), (NX16, 2, 1 / 16, 32), (AGX, 3, 1 / 4, 64), (ORIN, 10, 9 / 16, 128)],
    }


@pytest.mark.parametrize(
    ("name", "rounds", "mask_rounds", "mask_lr", "lambda1", "lr", "lambda2", "mu", "t_clk"),
    [
        ("e1", 120, 20, 1e-2, 1.0, 5e-3, 0.2, 0.5, 60.0),
        ("e2", 100, 10, 1e-3, 1.0, 2.5e-4, 0.3, 0.4, 100.0),
        ("e3", 100, 10, 1e-2, 1.5, 2.5e-4, 0.3, 0.4, 150.0),
    ],
)
def test_the_papers_hyperparameters(
    name: str,
    rounds: int,
    mask_rounds: int,
    mask_lr: float,
    lambda1: float,
    lr: float,
    lambda2: float,
    mu: float,
    t_clk: float,
) -> None:
    recipe = Recipe.load(name)
    masks, exits = recipe.method["masks"], recipe.method["exits"]
    assert (masks["rounds"], masks["epochs"], masks["lr"], masks["lambda1"]) == (mask_rounds, 5, mask_lr, lambda1)
    assert (recipe.training.epochs, recipe.training.lr, recipe.training.optimizer) == (5, lr, "adan")
    assert (exits["lambda2"], exits["temperature"]) == (lambda2, 3.0)
    schedule = recipe.schedule
    assert (schedule.rounds, schedule.mu, schedule.t_clk) == (rounds, mu, t_clk)
    assert schedule.redispatch == "at-aggregation"


@pytest.mark.parametrize("name", SHIPPED)
def test_comments_about_depth_are_true(name: str) -> None:
    """`rate = 0.0625  # 2 of 8 blocks ...`: the first number in the comment is the window's depth."""
    recipe = Recipe.load(name)
    config = CHECKPOINTS.get(name) or recipe.model.config(image=recipe.model.patch or 16)
    for line in recipe_text(name).splitlines():
        value, _, comment = line.partition("#")
        if value.startswith("rate") and " blocks" in comment:
            rate = tomllib.loads(value)["rate"]
            claimed = int(comment.split(" blocks")[0].replace(f" of {config.depth}", "").split()[-1])
            assert claimed == cut(config, rate, recipe.method["window"]["ratio"]).blocks, line


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("fashion-mini", [1 / 16] * 4 + [1 / 4] * 4),
        ("cifar10", [1 / 16] * 4 + [1 / 4] * 4),
        ("cifar10-mini", [1 / 16] + [9 / 16] * 7),
        ("trec-depth", [1 / 16] * 4 + [1 / 4] * 4),
    ],
)
def test_methods_are_compared_by_equal_updates(name: str, rates: list[float]) -> None:
    recipe = Recipe.load(name)
    assert [group.rate for group in recipe.fleet.devices for _ in range(group.count)] == rates
    assert recipe.schedule.rounds is None
    assert recipe.schedule.updates is not None
    assert recipe.schedule.updates % len(rates) == 0  # whole synchronous rounds
    assert recipe.data.test_samples == 0  # the whole test set at the end
    assert recipe.data.validation_fraction > 0
    assert recipe.training.lr_schedule == "cosine"


def test_the_changes_that_a_comment_names_make_the_papers_mix() -> None:
    words = [
        word for line in recipe_text("cifar10").splitlines() if line.startswith("#   --set") for word in line.split()
    ]
    changes = [word for word in words if "=" in word]
    groups = Recipe.load("cifar10", changes).fleet.devices
    assert [group.rate for group in groups for _ in range(group.count)] == [1 / 16] + [9 / 16] * 7


def test_tweets_and_phrasebank_count_their_classes_differently() -> None:
    """Bearish, bullish, neutral there; negative, neutral, positive here."""
    data = Recipe.load("llama-fpb").data
    assert data.classes == ("negative", "positive", "neutral")
    assert data.test_classes == ("negative", "neutral", "positive")


@pytest.mark.parametrize("name", ["bert-small-agnews-mini", "bert-small-sst2-mini"])
def test_the_minis_of_text_have_the_papers_mix_and_whole_rounds(name: str) -> None:
    recipe = Recipe.load(name)
    assert [group.rate for group in recipe.fleet.devices for _ in range(group.count)] == [1 / 16] + [9 / 16] * 7
    assert recipe.schedule.updates is not None
    assert recipe.schedule.updates % 8 == 0
    assert recipe.data.validation_fraction > 0


def test_nobody_in_the_demo_could_train_the_whole_model_and_everybody_can_train_its_part() -> None:
    """The claim of its first line, by the ledger."""
    run_setup = build_run_setup(Recipe.load("demo"))
    needed = run_setup.context.full_memory()
    assert needed is not None
    assert f"{needed / 1e6:.1f} MB" in recipe_text("demo")
    assert all(member.device.memory < needed for member in run_setup.context.members.values())
    first_orders(run_setup)  # raises BudgetError if a task does not fit


def test_the_pretrained_recipes_have_the_form_for_pretrained_models() -> None:
    for name in ("minilm-banking77", "minilm-trec", "dino-caltech101"):
        method = Recipe.load(name).method
        assert method["form"] == "pretrained"
        assert method["exits"]["start"] == "discriminant"
