"""`training.embeddings` in whole runs: every method, both kinds of text, what stays and what moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cos2p.errors import RecipeError
from cos2p.methods import methods
from cos2p.models.spec import from_bits, to_bits
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import RunSetup, build_run_setup, first_weights
from cos2p.runtime.simulation import Simulation
from tests.runtime.played import answer, join_all, notes, restored, sent, server
from tests.runtime.small import InlineWorkers
from tests.runtime.texts import text_recipe, texts
from tests.submodel.strategies import CONFIGS
from tests.tiny import context, same

READERS = sorted(name for name, kind in methods().items() if "vit" not in name and not kind.by_memory)
"""The methods that are not for images alone, and train embeddings."""


def play(recipe: Recipe) -> tuple[Simulation, list[Mapping[str, Any]]]:
    run_setup = build_run_setup(recipe)
    events: list[Mapping[str, Any]] = []
    simulation = Simulation(run_setup, InlineWorkers(run_setup), lambda event: events.append(event.to_dict()))  # type: ignore[arg-type]
    simulation.begin()
    simulation.play(lambda: None)
    wrong = [event for event in events if event["kind"] in ("refused", "failed", "dropped")]
    assert not wrong, wrong
    return simulation, events


def held(run_setup: RunSetup) -> torch.Tensor:
    """Rows whose tokens some device has."""
    rows = {row for member in run_setup.context.members.values() for row in from_bits(member.rows)}
    return torch.tensor(sorted(rows))


@pytest.mark.parametrize("method", READERS)
def test_rows_that_nobody_has_stay_bitwise(method: str, tmp_path: Path) -> None:
    recipe = text_recipe(tmp_path, method)
    simulation, events = play(recipe)
    before = first_weights(recipe, simulation.run_setup.config)["embed.tokens"]
    after, own = simulation.server.weights["embed.tokens"], held(build_run_setup(text_recipe(tmp_path)))
    others = ~torch.isin(torch.arange(len(before)), own)
    assert 10 < len(own) < 40
    if method in ("cos2p", "fedavg", "fedasync", "fedbuff", "fedrolex", "heterofl", "ramfed", "fedmezo", "prunefl"):
        assert not torch.equal(after[own], before[own])  # some others never train the lowest blocks
    assert torch.equal(after[others], before[others])
    assert [event for event in events if event["kind"] == "merged"]


@pytest.mark.parametrize("method", ["cos2p", "fedavg", "fedasync", "fedmezo", "fedpm"])
def test_a_language_model_trains_the_rows_of_both_tables(method: str, tmp_path: Path) -> None:
    values = texts(tmp_path, task="language-modeling")
    values["method"] = {"name": method}
    simulation, _ = play(Recipe.parse(values))
    own = held(simulation.run_setup)
    before = first_weights(simulation.recipe, simulation.run_setup.config)
    for name in ("embed.tokens", "lm_head.weight"):
        if name in before:
            moved = (simulation.server.weights[name] != before[name]).any(1)
            assert not moved[~torch.isin(torch.arange(len(moved)), own)].any()
            assert moved.any()


def test_for_co_s2p_rows_and_whole_tables_give_the_same_classifier(tmp_path: Path) -> None:
    """γ of a row without a gradient is 0 with the whole table; without it the row is not there. Bytes are saved."""
    plain = {"optimizer": "sgd", "lr": 0.1}  # Adan would make steps of the rounding where a gradient is nothing else
    (rows, some), (whole, all_) = (
        play(text_recipe(tmp_path, embeddings=choice, **plain)) for choice in ("rows", "whole")
    )
    assert rows.server.weights.keys() == whole.server.weights.keys()
    for name, tensor in rows.server.weights.items():
        torch.testing.assert_close(tensor, whole.server.weights[name], atol=1e-6, rtol=0)
    fewer, more = (sum(e["bytes"] for e in events if e["kind"] in ("dispatched", "arrived")) for events in (some, all_))
    assert fewer < 0.8 * more


def test_frozen_embeddings_do_not_move(tmp_path: Path) -> None:
    recipe = text_recipe(tmp_path, embeddings="frozen")
    simulation, _ = play(recipe)
    before, after = first_weights(recipe, simulation.run_setup.config), simulation.server.weights
    embedded = {name for name in before if name.startswith("embed.")}
    assert same({n: before[n] for n in embedded}, {n: after[n] for n in embedded})
    assert not same(before, after)


def test_a_method_without_rows_is_not_told_of_tokens(tmp_path: Path) -> None:
    members = build_run_setup(text_recipe(tmp_path, "heterofl")).context.members
    assert {member.rows for member in members.values()} == {""}


def test_a_method_that_cannot_freeze_says_so_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"training.embeddings: 'frozen' is not for the method 'heterofl'.*'whole'"):
        text_recipe(tmp_path, "heterofl", embeddings="frozen")
    with pytest.raises(RecipeError, match="'rows' or 'whole'"):
        text_recipe(tmp_path, "fedmezo", embeddings="frozen")


# ---------------------------------------------------------------- the server, by hand

BERT = CONFIGS["bert"]


def test_every_assignment_is_cut_and_the_door_knows_it() -> None:
    given = context(BERT, rates=(1.0, 1.0), mu=1.0, t_clk=0.0)
    members = {name: replace(member, rows=to_bits((0, 3, 4))) for name, member in given.members.items()}
    played = server(replace(given, members=members), method="fedavg")
    orders = sent(join_all(played))
    assert [order.spec.rows for order in orders] == [(0, 3, 4)] * 2
    assert played.orders.task(orders[0]).weights["embed.tokens"].shape == (3, BERT.dim)

    good = answer(played, "pi-0")
    more = {**good.delta, "embed.tokens": torch.zeros(4, BERT.dim)}
    (note,) = notes(
        played.receive("pi-0", replace(good, spec=replace(good.spec, rows=(0, 3, 4, 5)), delta=more)), "refused"
    )
    assert "rows of the token table are not those of the task" in note["reason"]
    (note,) = notes(
        played.receive(
            "pi-1", replace(answer(played, "pi-1"), delta={**good.delta, "embed.tokens": more["embed.tokens"]})
        ),
        "refused",
    )
    assert "embed.tokens is torch.float32 of shape (4, 16); expected is float32, 3 × 16" in note["reason"]


def test_a_late_update_lands_on_the_rows_it_was_cut_from() -> None:
    """FedBuff with a buffer of one: the second update is one version late, so it counts 1/√2."""
    given = context(BERT, rates=(1.0, 1.0))
    rows = {"pi-0": (0, 3, 4), "pi-1": (0, 4, 7)}
    members = {name: replace(member, rows=to_bits(rows[name])) for name, member in given.members.items()}
    played = server(replace(given, members=members), method="fedbuff", settings={"buffer": 1})
    join_all(played)
    late = answer(played, "pi-1")
    played.receive("pi-0", answer(played, "pi-0"))
    one = played.weights["embed.tokens"]
    (note,) = notes(played.receive("pi-1", late), "merged")
    assert note["staleness"] == 1
    expected = one.clone()
    expected[[0, 4, 7]] -= late.delta["embed.tokens"] / 2**0.5
    torch.testing.assert_close(played.weights["embed.tokens"], expected)
    moved = (played.weights["embed.tokens"] != one).any(1)
    assert moved.nonzero().flatten().tolist() == [0, 4, 7]


def test_a_client_that_joins_with_other_data_gets_other_rows() -> None:
    given = context(BERT, rates=(1.0,))
    members = {name: replace(member, rows=to_bits((0, 3))) for name, member in given.members.items()}
    played = server(replace(given, members=members), method="fedavg")
    (before,) = sent(join_all(played))
    played.welcome(replace(members["pi-0"], rows=to_bits((0, 9))))
    (after,) = sent(join_all(played))
    assert (before.spec.rows, after.spec.rows) == ((0, 3), (0, 9))
    fresh = server(replace(given, members={"pi-0": replace(members["pi-0"], rows=to_bits((0, 9)))}), method="fedavg")
    again = restored(played, fresh=fresh)
    assert [order.spec.rows for order in again.orders.values()] == [(0, 9)]
