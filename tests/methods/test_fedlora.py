"""Federated LoRA as a method: ranks by memory, what travels, whole runs, restarts, and what the forms promise."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cos2p.errors import BudgetError, ConfigError
from cos2p.fleet.device.worker import read_task
from cos2p.memory.parts import HEAD, Part
from cos2p.memory.planning import least_of
from cos2p.messages import Task, Update, tensor_bytes
from cos2p.methods import build_method, make_contract, run_task
from cos2p.methods.adapters.factors import is_adapter, merged
from cos2p.methods.base import Call
from cos2p.models.layout import init_weights
from cos2p.tracking.event_kinds import Merged, Refused
from tests.methods.budgets import training, with_memory
from tests.methods.fleet import Fleet, digits, digits_house, with_rates
from tests.tiny import VIT, assert_close, context, same

FORMS: dict[str, dict[str, Any]] = {
    "hlora": {"name": "fedlora"},
    "ffa": {"name": "fedlora", "form": "ffa"},
    "semi-asynchronous": {"name": "fedlora", "aggregation": "semi-asynchronous"},
    "in 8 bits, top block": {"name": "fedlora", "precision": "int8", "top_blocks": 1, "targets": ["o", "fc1"]},
    "probe": {"name": "probe"},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_whole_run_leaves_the_base_as_it_was(form: str) -> None:
    fleet = Fleet(digits_house(updates=6), FORMS[form]).run()
    merges = [note for note in fleet.notes if isinstance(note, Merged)]
    assert len(merges) == 6
    assert not [note for note in fleet.notes if note.kind in ("refused", "dropped", "excluded")]
    assert all(math.isfinite(note.report["loss"]) for note in merges)
    top = f"exits.{fleet.context.config.depth}."
    base = {name: tensor for name, tensor in fleet.start.items() if not name.startswith(top)}
    assert same({name: fleet.server.weights[name] for name in base}, base)
    assert not torch.equal(fleet.server.weights[f"{top}linear.weight"], fleet.start[f"{top}linear.weight"])
    moved = [name for name, t in fleet.server.weights.items() if is_adapter(name) and name.endswith(".up") and t.any()]
    assert bool(moved) == (form != "probe")


@pytest.mark.parametrize("form", ["hlora", "ffa", "in 8 bits, top block", "probe"])
def test_what_is_promised_is_what_travels_and_again_the_same(form: str) -> None:
    fleet = Fleet(digits_house(rounds=1), FORMS[form])
    config, order = fleet.context.config, fleet.orders[0]
    known, task, shard = make_contract(config, order), fleet.server.orders.task(order), digits().shards[order.client]
    update, _ = run_task(config, Task.from_bytes(task.to_bytes()), shard, {})
    assert {name: tuple(t.shape) for name, t in update.delta.items()} == known.answer(update.spec)
    assert tensor_bytes(update.delta, update.extras) == known.upload() == tensor_bytes(task.weights)
    assert update.to_bytes() == run_task(config, task, shard, {})[0].to_bytes()


def test_a_fleet_s_file_holds_the_same_task(tmp_path: Path) -> None:
    fleet = Fleet(digits_house(rounds=1), FORMS["hlora"])
    config, order = fleet.context.config, fleet.orders[0]
    fleet.server.orders.write_task(order, tmp_path / "task")
    mapped, task = read_task(tmp_path / "task"), fleet.server.orders.task(order)
    assert same(dict(sorted(mapped.weights.items())), dict(sorted(task.weights.items())))
    assert same(dict(sorted(mapped.prefix.items())), dict(sorted(task.prefix.items())))
    assert "blocks.1.fc2.weight" in mapped.prefix
    updates = [run_task(config, t, digits().shards[order.client], {})[0] for t in (mapped, task)]
    assert same(dict(updates[0].delta), dict(updates[1].delta))


def test_ffa_sends_no_down_and_half_as_much() -> None:
    both, up = (Fleet(digits_house(rounds=1), FORMS[form]) for form in ("hlora", "ffa"))
    sizes = [
        sum(t.nbytes for name, t in fleet.server.orders.task(fleet.orders[0]).weights.items() if is_adapter(name))
        for fleet in (both, up)
    ]
    assert not [name for name in up.server.orders.task(up.orders[0]).weights if name.endswith(".down")]
    # q and v are 16 × 16, fc2 is 16 × 32: of 2·(16+16) + (32+16) numbers a rank `up` has 3·16
    assert sizes[1] * (2 * 32 + 48) == sizes[0] * 48


@pytest.mark.parametrize("form", ["hlora", "ffa"])
def test_one_client_is_local_training(form: str) -> None:
    fleet = Fleet(with_rates(digits_house(rounds=1), 1.0), FORMS[form])
    order = fleet.orders[0]
    task = fleet.server.orders.task(order)
    update, _ = run_task(fleet.context.config, task, digits().shards[order.client], {})
    fleet.run()
    local = {**fleet.start, **fleet.method.initial_weights({})}
    local |= {name: task.weights[name] - delta for name, delta in update.delta.items()}
    assert_close(fleet.method.evaluated_weights(fleet.server.weights) | _factors(local), merged(local, 2.0), atol=1e-6)


def _factors(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """An hlora server has other factors of the same product: only the merged matrices are compared."""
    return {name: t for name, t in merged(weights, 2.0).items() if is_adapter(name)}


def test_a_device_takes_the_largest_rank_that_fits_and_the_head_below_that() -> None:
    house = context(VIT.with_(dim=64, mlp=128, heads=4))
    method = build_method({"name": "fedlora"}, house)
    member = next(iter(house.members.values()))
    ranks = [part.size if part.kind == "factors" else 0 for part in method.parts(member)]
    assert ranks == [*range(32, 0, -1), 0]
    for part in method.parts(member)[::6]:
        memory = least_of(method, member.training(part), exact=True)
        tight = with_memory(house, memory, memory, memory)
        call = Call(tight.members[member.name], 0, 0, 0, {})
        found = build_method({"name": "fedlora"}, tight).assign(call).settings
        assert found.rank == part.size  # type: ignore[attr-defined]
    small = with_memory(house, 1000, 1000, 1000)
    with pytest.raises(BudgetError, match=r"even the head alone needs .* MB, the device has 1\.00 kB"):
        build_method({"name": "fedlora"}, small).assign(Call(small.members[member.name], 0, 0, 0, {}))


def test_devices_of_unequal_ranks_train_together() -> None:
    house = digits_house(rounds=2)
    parts = Part("factors", 32), Part("factors", 4), HEAD
    fleet = Fleet(training(house, *parts), FORMS["hlora"]).run()
    assert [order.settings["rank"] for order in fleet.orders[:3]] == [32, 4, 0]
    assert not [note for note in fleet.notes if isinstance(note, Refused)]


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda d: d | {"blocks.0.adapters.q.up": d["blocks.0.adapters.q.up"][:1]}, "adapters.q.up"),
        (lambda d: d | {"blocks.0.q.weight": torch.zeros(16, 16)}, "blocks.0.q.weight"),
        (lambda d: {n: t for n, t in d.items() if not n.startswith("exits")}, "exits.2."),
        (lambda d: d | {"blocks.0.adapters.q.up": torch.full_like(d["blocks.0.adapters.q.up"], math.nan)}, "finite"),
        (lambda d: d | {"blocks.0.adapters.q.up": d["blocks.0.adapters.q.up"] + 1e9}, "root mean square"),
        (lambda d: d | {"blocks.0.adapters.q.up": d["blocks.0.adapters.q.up"].half()}, "adapters.q.up"),
    ],
)
def test_the_door_refuses_what_is_not_an_adapter(harm: Any, reason: str) -> None:
    fleet = Fleet(digits_house(rounds=1), FORMS["hlora"])
    order = fleet.orders[0]
    update, _ = run_task(fleet.context.config, fleet.server.orders.task(order), digits().shards[order.client], {})
    before = fleet.server.weights
    effects = fleet.server.receive(order.client, replace(update, delta=harm(dict(update.delta))).to_bytes())
    refused = [effect for effect in effects if isinstance(effect, Refused)]
    assert reason in refused[0].reason
    assert fleet.server.weights is before
    assert isinstance(update, Update)


def test_language_models_are_trained_too() -> None:
    from tests.submodel.strategies import CONFIGS
    from tests.tiny import shard

    for name in ("llama tied", "llama untied"):
        config = CONFIGS[name]
        house = context(config, rates=(1.0, 1.0), rounds=1)
        fleet = Fleet(house, FORMS["hlora"], {n: shard(config) for n in house.members}, init_weights(config, 0)).run()
        assert any(t.any() for n, t in fleet.server.weights.items() if n.endswith(".up"))
        for table in ("embed.tokens", "lm_head.weight"):
            if table in fleet.start:
                assert torch.equal(fleet.server.weights[table], fleet.start[table])


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="targets name 'gate'; the matrices of this model's blocks are q, k, v"):
        build_method({"name": "fedlora", "targets": ["gate"]}, context())
