"""Frozen parts and features that a device keeps between its tasks."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cos2p import ModelConfig
from cos2p.messages import CachedParts, Order, Task
from cos2p.methods import make_contract, run_task
from cos2p.models.layout import Weights
from cos2p.submodel.slicing import extract, extract_prefix
from cos2p.training.client_cache import CacheMiss, ClientCache, disk_limit, part_name
from cos2p.training.prefix import encode, part_of
from tests.submodel.strategies import CONFIGS, random_weights
from tests.tiny import VIT, order, same, shard, window

families = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def cached_task(
    config: ModelConfig, weights: Weights, frozen: int, held: set[str], features: int = 0, keep: int = 0
) -> Task:
    """Two blocks above `frozen`; of the parts below, those in `held` do not come along."""
    given = order(window(config, frozen), prefix_precision="float16")
    prefix = encode(extract_prefix(weights, config, given.spec), "float16")
    keys = ["embed.", *(f"blocks.{i}." for i in range(frozen))]
    parts = {key: part_name(part_of(prefix, key)) for key in keys}
    given = replace(given, cached=CachedParts(parts, frozenset(held), features, keep))
    sent = {name: tensor for name, tensor in prefix.items() if not name.startswith(tuple(held) or ("-",))}
    return Task(given, extract(weights, config, given.spec), sent)


def plain(task: Task, weights: Weights, config: ModelConfig) -> Task:
    prefix = encode(extract_prefix(weights, config, task.order.spec), "float16")
    return Task(replace(task.order, cached=None), task.weights, prefix)


@families
def test_a_task_with_parts_of_earlier_ones_is_the_same_task(config: ModelConfig, tmp_path: Path) -> None:
    weights, client_cache, data = random_weights(config, 1), ClientCache(tmp_path), shard(config)
    first = cached_task(config, weights, 1, held=set(), keep=1)
    run_task(config, first, data, {}, client_cache)
    second = cached_task(config, weights, 2, held={"embed.", "blocks.0."}, features=1)
    assert not any(name.startswith(("embed.", "blocks.0.")) for name in second.prefix)
    update, _ = run_task(config, Task.from_bytes(second.to_bytes()), data, {}, client_cache)
    expected, _ = run_task(config, plain(second, weights, config), data, {})
    assert same(update.delta, expected.delta)
    assert update.report == expected.report


def test_features_of_an_earlier_task_are_used_and_not_computed_again(tmp_path: Path) -> None:
    """The parts below them are not even looked at: here they are not there any more."""
    weights, client_cache, data = random_weights(VIT, 1), ClientCache(tmp_path), shard(VIT)
    first = cached_task(VIT, weights, 1, held=set(), keep=1)
    run_task(VIT, first, data, {}, client_cache)
    second = cached_task(VIT, weights, 2, held={"embed.", "blocks.0."}, features=1)
    assert second.order.cached is not None
    for key in ("embed.", "blocks.0."):
        (tmp_path / f"{second.order.cached.parts[key]}.part").unlink()
    run_task(VIT, second, data, {}, client_cache)
    with pytest.raises(CacheMiss):
        run_task(VIT, cached_task(VIT, weights, 2, held={"embed.", "blocks.0."}), data, {}, client_cache)


def test_the_clock_counts_what_is_computed() -> None:
    weights = random_weights(VIT, 1)
    whole, part = (
        make_contract(VIT, cached_task(VIT, weights, 2, set(), features).order).flops(10, 4) for features in (0, 1)
    )
    assert 0 < part.prefix < 0.6 * whole.prefix
    assert part.training == whole.training


@pytest.mark.parametrize("harm", ["gone", "flipped", "cut"])
def test_a_damaged_part_is_known_by_its_name(tmp_path: Path, harm: str) -> None:
    client_cache = ClientCache(tmp_path)
    part = {"blocks.0.q.weight": torch.arange(12.0).view(3, 4)}
    name = part_name(part)
    assert client_cache.put(part)
    path = tmp_path / f"{name}.part"
    data = bytearray(path.read_bytes())
    if harm == "gone":
        path.unlink()
    else:
        data[-2] ^= 1
        path.write_bytes(data if harm == "flipped" else data[:-3])
    with pytest.raises(CacheMiss, match=name[:8]):
        client_cache.get(name)
    assert not path.exists()
    assert client_cache.put(part)  # it is fetched again
    assert torch.equal(client_cache.get(name)["blocks.0.q.weight"], torch.arange(12.0).view(3, 4))


@pytest.mark.parametrize("harm", ["gone", "flipped", "cut", "longer"])
def test_damaged_features_are_computed_again(tmp_path: Path, harm: str) -> None:
    weights, data = random_weights(VIT, 1), shard(VIT)
    second = cached_task(VIT, weights, 2, held={"embed.", "blocks.0."}, features=1)
    outcomes = []
    for folder in ("whole", "harmed"):
        client_cache = ClientCache(tmp_path / folder)
        run_task(VIT, cached_task(VIT, weights, 1, held=set(), keep=1), data, {}, client_cache)
        for path in (tmp_path / "harmed").glob("*-*.part"):
            content = bytearray(path.read_bytes())
            content[5] ^= 4
            changed = {"flipped": content, "cut": content[:20], "longer": content + b"."}
            if harm == "gone":
                path.unlink()
            else:
                path.write_bytes(changed[harm])
        outcomes.append(run_task(VIT, second, data, {}, client_cache)[0])
    assert same(outcomes[0].delta, outcomes[1].delta)


def test_the_cache_has_a_limit_and_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    parts = [{"a": torch.full((1000,), float(i))} for i in range(5)]
    names = [part_name(part) for part in parts]
    assert all(map(ClientCache(tmp_path).put, parts[:4]))
    for age, name in enumerate(names[:4]):
        os.utime(tmp_path / f"{name}.part", (1000 + age, 1000 + age))
    size = (tmp_path / f"{names[0]}.part").stat().st_size
    client_cache = ClientCache(tmp_path, limit=3 * size)
    client_cache.get(names[0])  # used just now
    assert client_cache.put(parts[4])
    assert {path.stem for path in tmp_path.glob("*.part")} == {names[0], names[3], names[4]}
    client_cache.begin([names[3], names[0]])  # a task needs them and brings others: there is room for one
    assert client_cache.put(parts[1])
    assert not client_cache.put(parts[2])
    assert {path.stem for path in tmp_path.glob("*.part")} == {names[0], names[3], names[1]}


def test_a_cache_takes_a_share_of_the_free_disk_and_of_the_owners(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    assert free / 5 < disk_limit(tmp_path / "not-there-yet") < free / 3
    assert disk_limit(tmp_path, 1000) == 500


def test_without_room_a_task_is_done_and_says_so(tmp_path: Path) -> None:
    weights, data = random_weights(VIT, 1), shard(VIT)
    task = cached_task(VIT, weights, 2, held=set(), keep=2)
    update, _ = run_task(VIT, task, data, {}, ClientCache(tmp_path, limit=1))
    assert update.report["uncached"] == 1
    assert not list(tmp_path.iterdir())
    assert same(update.delta, run_task(VIT, plain(task, weights, VIT), data, {})[0].delta)


def test_features_of_other_samples_are_not_used(tmp_path: Path) -> None:
    weights, client_cache = random_weights(VIT, 1), ClientCache(tmp_path)
    run_task(VIT, cached_task(VIT, weights, 1, held=set(), keep=1), shard(VIT, seed=1), {}, client_cache)
    second, other = cached_task(VIT, weights, 2, held={"embed.", "blocks.0."}, features=1), shard(VIT, seed=2)
    update, _ = run_task(VIT, second, other, {}, client_cache)
    assert same(update.delta, run_task(VIT, plain(second, weights, VIT), other, {})[0].delta)


def test_an_order_travels_with_what_is_shelved_and_without_it_as_before() -> None:
    given = order(window(VIT, 2))
    assert "cached" not in given.to_dict()
    cached = replace(given, cached=CachedParts({"embed.": "ab"}, frozenset({"embed."}), 0))
    assert Order.from_dict(cached.to_dict()) == cached
