"""What the server believes its clients have kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cos2p.messages import Order
from cos2p.models.layout import Weights
from cos2p.models.spec import BlockKeep, SubmodelSpec
from cos2p.server.client_cache import ClientCaches, kept_parts
from tests.submodel.strategies import random_weights
from tests.tiny import VIT, order, window


def given_order(frozen: int, client: str = "pi-1") -> Order:
    return order(window(VIT, frozen), client=client, prefix_precision="float16")


def changed(weights: Weights, part: str, step: float = 0.1) -> Weights:
    """A version in which one part has moved; the other tensors are the same objects."""
    return {name: t + step if name.startswith(part) else t for name, t in weights.items()}


def done(client_caches: ClientCaches, frozen: int, weights: Weights) -> Order:
    """A task planned and answered."""
    planned = given_order(frozen)
    planned = replace(planned, cached=client_caches.plan(planned, weights))
    client_caches.answered(planned, features_kept=True)
    return planned


def held(planned: Order) -> set[str]:
    assert planned.cached is not None
    return set(planned.cached.held)


def test_what_did_not_change_is_sent_once_and_the_rest_again() -> None:
    client_caches, weights = ClientCaches(VIT), random_weights(VIT, 1)
    assert held(done(client_caches, 1, weights)) == set()
    assert held(done(client_caches, 2, weights)) == {"embed.", "blocks.0."}
    other = changed(weights, "blocks.0.")
    assert held(done(client_caches, 2, other)) == {"embed.", "blocks.1."}


def test_features_are_valid_as_long_as_nothing_below_them_is_sent_anew() -> None:
    client_caches, weights = ClientCaches(VIT), random_weights(VIT, 1)
    depths = []
    for frozen, part in ((1, ""), (2, ""), (2, "blocks.1."), (2, "blocks.0."), (1, ""), (0, ""), (2, "blocks.1.")):
        weights = changed(weights, part) if part else weights
        cached = done(client_caches, frozen, weights).cached
        assert cached is not None
        depths.append(cached.features)
    # The second task goes on from the first one's. A changed block 1 spoils what is behind two blocks, and so does 0;
    # at last those behind one block are there, of the fifth task.
    assert depths == [0, 1, 0, 0, 0, 0, 1]


def test_a_client_has_what_it_was_sent_when_it_answers_and_not_before() -> None:
    client_caches, weights = ClientCaches(VIT), random_weights(VIT, 1)
    lost = given_order(1)
    client_caches.plan(lost, weights)
    assert held(done(client_caches, 1, weights)) == set()
    client_caches.forget("pi-1")
    assert held(done(client_caches, 1, weights)) == set()
    assert held(done(client_caches, 1, weights)) == {"embed.", "blocks.0."}


def test_a_restored_server_believes_the_same() -> None:
    client_caches, weights = ClientCaches(VIT), random_weights(VIT, 1)
    done(client_caches, 1, weights)
    client_caches.plan(given_order(2), weights)
    again = ClientCaches(VIT)
    again.load_state(client_caches.state())
    assert again.state() == client_caches.state()
    assert again.in_use() == client_caches.in_use()
    assert again.plan(given_order(2), weights) == client_caches.plan(given_order(2), weights)


@pytest.mark.parametrize("suffix", [False, True])
def test_parts_that_masks_have_cut_are_not_kept(suffix: bool) -> None:
    spec = SubmodelSpec(1, (BlockKeep((0,), (1,)),), (4 if suffix else 2,), suffix=suffix)
    assert kept_parts(VIT, spec) == ["embed.", "blocks.0."] + (["blocks.2.", "blocks.3."] if suffix else [])
