"""What the server believes its clients have kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cos2p.messages import Order
from cos2p.models.layout import Weights
from cos2p.models.spec import BlockKeep, SubmodelSpec
from cos2p.server.client_cache import Shelves, kept_parts
from tests.submodel.strategies import random_weights
from tests.tiny import VIT, order, window


def given_order(frozen: int, client: str = "pi-1") -> Order:
    return order(window(VIT, frozen), client=client, prefix_precision="float16")


def changed(weights: Weights, part: str, step: float = 0.1) -> Weights:
    """A version in which one part has moved; the other tensors are the same objects."""
    return {name: t + step if name.startswith(part) else t for name, t in weights.items()}


def done(shelves: Shelves, frozen: int, weights: Weights, drift: float = 0.0) -> Order:
    """A task planned and answered."""
    planned = given_order(frozen)
    planned = replace(planned, shelved=shelves.plan(planned, weights, drift))
    shelves.answered(planned, features_kept=True)
    return planned


def held(planned: Order) -> set[str]:
    assert planned.shelved is not None
    return set(planned.shelved.held)


def test_what_did_not_change_is_sent_once_and_the_rest_again() -> None:
    shelves, weights = Shelves(VIT), random_weights(VIT, 1)
    assert held(done(shelves, 1, weights)) == set()
    assert held(done(shelves, 2, weights)) == {"embed.", "blocks.0."}
    other = changed(weights, "blocks.0.")
    shelves.moved(weights, other)
    assert held(done(shelves, 2, other)) == {"embed.", "blocks.1."}


def test_features_are_valid_as_long_as_nothing_below_them_is_sent_anew() -> None:
    shelves, weights = Shelves(VIT), random_weights(VIT, 1)
    depths = []
    for frozen, part in ((1, ""), (2, ""), (2, "blocks.1."), (2, "blocks.0."), (1, ""), (0, ""), (2, "blocks.1.")):
        other = changed(weights, part) if part else weights
        shelves.moved(weights, other)
        weights = other
        shelved = done(shelves, frozen, weights).shelved
        assert shelved is not None
        depths.append(shelved.features)
    # The second task goes on from the first one's. A changed block 1 spoils what is behind two blocks, and so does 0;
    # at last those behind one block are there, of the fifth task.
    assert depths == [0, 1, 0, 0, 0, 0, 1]


def test_a_part_that_moved_little_serves_if_the_recipe_allows() -> None:
    shelves, weights = Shelves(VIT), random_weights(VIT, 1)
    name = done(shelves, 1, weights, 0.5).shelved
    for _ in range(3):
        other = changed(weights, "embed.", 1e-3)
        shelves.moved(weights, other)
        weights = other
    later = done(shelves, 1, weights, 0.5)
    assert name is not None
    assert later.shelved is not None
    assert held(later) == {"embed.", "blocks.0."}
    assert later.shelved.parts == name.parts  # by the name of what the client has, not of what the server has
    assert later.shelved.features == 1
    assert held(done(shelves, 1, weights, 0.0)) == {"blocks.0."}


@given(st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=6))
def test_the_way_is_never_shorter_than_the_distance(steps: list[float]) -> None:
    first = weights = random_weights(VIT, 1)
    shelves = Shelves(VIT)
    done(shelves, 1, weights)
    rng = torch.Generator().manual_seed(0)
    largest = 0.0
    for step in steps:
        other = {
            n: t + step * torch.randn(t.shape, generator=rng) if "blocks.0." in n else t for n, t in weights.items()
        }
        shelves.moved(weights, other)
        weights = other
        largest = max(largest, _norm(weights))
    distance = _norm({name: weights[name] - first[name] for name in first})
    way = shelves.state()["ways"].get("blocks.0.", 0.0)
    assert way * largest >= distance * (1 - 1e-5)


def _norm(weights: Weights) -> float:
    return float(torch.cat([t.flatten() for n, t in weights.items() if "blocks.0." in n]).norm())


def test_a_client_has_what_it_was_sent_when_it_answers_and_not_before() -> None:
    shelves, weights = Shelves(VIT), random_weights(VIT, 1)
    lost = given_order(1)
    shelves.plan(lost, weights, 0.0)
    assert held(done(shelves, 1, weights)) == set()
    shelves.forget("pi-1")
    assert held(done(shelves, 1, weights)) == set()
    assert held(done(shelves, 1, weights)) == {"embed.", "blocks.0."}


def test_a_restored_server_believes_the_same() -> None:
    shelves, weights = Shelves(VIT), random_weights(VIT, 1)
    done(shelves, 1, weights)
    shelves.plan(given_order(2), weights, 0.0)
    again = Shelves(VIT)
    again.load_state(shelves.state())
    assert again.state() == shelves.state()
    assert again.in_use() == shelves.in_use()
    assert again.plan(given_order(2), weights, 0.0) == shelves.plan(given_order(2), weights, 0.0)


@pytest.mark.parametrize("suffix", [False, True])
def test_parts_that_masks_have_cut_are_not_kept(suffix: bool) -> None:
    keep = BlockKeep((0,), (1,))
    spec = SubmodelSpec(1, (keep,), (4 if suffix else 2,), prefix=(keep,), suffix=suffix)
    assert kept_parts(VIT, spec) == ["embed."] + (["blocks.2.", "blocks.3."] if suffix else [])
