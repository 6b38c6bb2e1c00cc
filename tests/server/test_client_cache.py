"""What the server believes its clients have kept, and what it sends because of that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cos2p.messages import CachedParts, Order, Task
from cos2p.methods import make_contract, run_task
from cos2p.models.layout import Weights
from cos2p.models.spec import BlockKeep, SubmodelSpec
from cos2p.server.client_cache import ClientCaches
from cos2p.submodel.slicing import extract
from cos2p.training.client_cache import CacheMiss, ClientCache
from tests.submodel.strategies import random_weights
from tests.tiny import VIT, order, same, shard, window


def given_order(frozen: int, client: str = "pi-1", spec: SubmodelSpec | None = None, version: int = 1) -> Order:
    given = order(spec or window(VIT, frozen), client=client, prefix_precision="float16")
    return replace(given, version=version)


def changed(weights: Weights, part: str, step: float = 0.1) -> Weights:
    """A version in which one part has moved; the other tensors are the same objects."""
    return {name: t + step if name.startswith(part) else t for name, t in weights.items()}


def plan(client_caches: ClientCaches, planned: Order, weights: Weights) -> Order:
    return replace(planned, cached=client_caches.plan(make_contract(VIT, planned), weights))


def done(client_caches: ClientCaches, frozen: int, weights: Weights, stored: bool = True, version: int = 1) -> Order:
    """A task planned and answered."""
    planned = plan(client_caches, given_order(frozen, version=version), weights)
    client_caches.answered(planned, stored=stored, features_kept=True)
    return planned


def cached(planned: Order) -> CachedParts:
    assert planned.cached is not None
    return planned.cached


def held(planned: Order) -> set[str]:
    return set(cached(planned).held)


def test_what_did_not_change_is_sent_once_and_the_rest_again() -> None:
    client_caches, weights = ClientCaches(VIT), random_weights(VIT, 1)
    assert held(done(client_caches, 1, weights)) == set()
    assert held(done(client_caches, 2, weights)) == {"embed.", "blocks.0."}
    other = changed(weights, "blocks.0.")
    assert held(done(client_caches, 2, other)) == {"embed.", "blocks.1."}


def test_a_task_without_frozen_parts_is_as_before() -> None:
    client_caches = ClientCaches(VIT)
    assert plan(client_caches, given_order(0), random_weights(VIT, 1)).cached is None


def test_features_are_kept_behind_what_lasts_and_valid_as_long_as_it_does() -> None:
    client_caches, weights = ClientCaches(VIT), random_weights(VIT, 1)
    depths = []
    for frozen, part in ((2, ""), (2, ""), (2, ""), (2, "blocks.1."), (2, "blocks.1."), (1, ""), (2, "blocks.0.")):
        weights = changed(weights, part) if part else weights
        task = cached(done(client_caches, frozen, weights))
        depths.append((task.features, task.keep))
    # Nothing is known to last at first. The third task goes on from the second one's. When block 1 has changed, those
    # behind one block are kept, and used next time; when block 0 has, none are good.
    assert depths == [(0, 0), (0, 2), (2, 0), (0, 1), (1, 0), (1, 0), (0, 0)]
    assert cached(done(ClientCaches(VIT), 2, weights, version=0)).keep == 2  # nothing can have changed yet


def test_a_client_has_what_it_was_sent_when_it_answers_and_says_so() -> None:
    client_caches, weights = ClientCaches(VIT), random_weights(VIT, 1)
    plan(client_caches, given_order(1), weights)
    assert held(done(client_caches, 1, weights)) == set()
    assert held(done(client_caches, 1, weights)) == {"embed.", "blocks.0."}
    client_caches.forget("pi-1")
    assert held(done(client_caches, 1, weights, stored=False)) == set()
    assert held(done(client_caches, 1, weights)) == set()  # its disk was full


def test_a_restored_server_believes_the_same() -> None:
    client_caches, weights = ClientCaches(VIT), random_weights(VIT, 1)
    done(client_caches, 1, weights)
    plan(client_caches, given_order(2), weights)
    again = ClientCaches(VIT)
    again.load_state(client_caches.state())
    assert again.state() == client_caches.state()
    assert again.chains() == client_caches.chains()
    assert plan(again, given_order(2), weights) == plan(client_caches, given_order(2), weights)


REST = SubmodelSpec(1, (BlockKeep((0,), (1,)), BlockKeep((0,), (2,))), (4,), rest=True, suffix=True)


def task_of(planned: Order, weights: Weights, whole: bool = False) -> Task:
    contract = make_contract(VIT, planned)
    held = () if whole else tuple(cached(planned).held)
    frozen = {name: piece.make() for name, piece in contract.frozen_pieces(weights, held).items()}
    return Task(planned, extract(weights, VIT, planned.spec), frozen)


def test_the_frozen_rest_of_a_block_is_cut_from_the_block_that_the_device_has(tmp_path: Path) -> None:
    client_caches, weights, client_cache, data = (
        ClientCaches(VIT),
        random_weights(VIT, 1),
        ClientCache(tmp_path),
        shard(VIT),
    )
    first = plan(client_caches, given_order(2), weights)  # block 1 is frozen and whole
    run_task(VIT, task_of(first, weights), data, {}, client_cache)
    client_caches.answered(first, stored=True, features_kept=True)
    second = plan(client_caches, given_order(0, spec=REST), weights)
    assert held(second) == {"embed.", "blocks.0.", "blocks.1."}
    task = task_of(second, weights)
    assert {name.split(".")[1] for name in task.prefix} == {"2", "3"}
    assert same(
        run_task(VIT, task, data, {}, client_cache)[0].delta,
        run_task(VIT, task_of(second, weights, True), data, {})[0].delta,
    )


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["1", "2", "rest"]),
            st.sampled_from(["", "blocks.0.", "blocks.1.", "blocks.2."]),
            st.sampled_from(["", "", "lost", "damaged", "restart", "forgotten"]),
        ),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([0, 1, 60_000, 90_000]),
)
def test_whatever_happens_to_a_cache_updates_are_the_same(story: list[tuple[str, str, str]], limit: int) -> None:
    """Hits, misses, evictions, damage and restarts against tasks that come whole."""
    client_caches, weights, data = ClientCaches(VIT), random_weights(VIT, 1), shard(VIT)
    with TemporaryDirectory() as folder:
        for version, (kind, part, mishap) in enumerate(story):
            client_cache = ClientCache(Path(folder), limit)
            weights = changed(weights, part) if part else weights
            files = sorted(Path(folder).glob("*.part"))
            if mishap == "lost" and files:
                files[0].unlink()
            if mishap == "damaged" and files:
                content = bytearray(files[-1].read_bytes())
                content[-3] ^= 8
                files[-1].write_bytes(content)
            if mishap == "restart":
                again = ClientCaches(VIT)
                again.load_state(client_caches.state())
                client_caches = again
            if mishap == "forgotten":
                client_caches.forget("pi-1")
            given = (
                given_order(0, spec=REST, version=version)
                if kind == "rest"
                else given_order(int(kind), version=version)
            )
            planned = plan(client_caches, given, weights)
            try:
                update, _ = run_task(VIT, task_of(planned, weights), data, {}, client_cache)
            except CacheMiss:
                client_caches.forget("pi-1")
                planned = plan(client_caches, given, weights)
                assert not held(planned)
                update, _ = run_task(VIT, task_of(planned, weights), data, {}, client_cache)
            expected, _ = run_task(VIT, task_of(replace(planned, cached=None), weights, whole=True), data, {})
            assert same(update.delta, expected.delta)
            client_caches.answered(planned, stored=not update.report.get("uncached"), features_kept=True)
            assert not limit or sum(path.stat().st_size for path in Path(folder).glob("*.part")) <= limit


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_the_rest_of_a_block_in_eight_bits_comes_with_its_task(precision: str) -> None:
    """Its rows have other scales than those of the whole block."""
    client_caches, weights = ClientCaches(VIT), random_weights(VIT, 1)
    first = plan(client_caches, replace(given_order(2), prefix_precision=precision), weights)
    client_caches.answered(first, stored=True, features_kept=True)
    second = plan(client_caches, replace(given_order(0, spec=REST), prefix_precision=precision), weights)
    assert ("blocks.1." in held(second)) == (precision != "int8")
