"""Devices of few bytes in Co-S²P: low-rank factors of all blocks, multiplied out and merged as windows are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cos2p.aggregation.merge import Contribution, SegmentMerge
from cos2p.errors import RecipeError
from cos2p.memory.parts import Part
from cos2p.messages import Order, Task, tensor_bytes
from cos2p.methods import build_method, make_contract, make_trainer, run_task
from cos2p.methods.adapters.device import LoraSettings, LoraTrainer
from cos2p.methods.adapters.factors import is_adapter, merged
from cos2p.methods.base import Call
from cos2p.methods.cos2p.factored import FactoredMerge, FactoredTrainer
from cos2p.models.spec import BlockKeep, SubmodelSpec
from cos2p.models.transformer import ElasticTransformer
from cos2p.recipe import Recipe
from cos2p.tracking.event_kinds import Merged
from cos2p.training.rate_trial import LADDERS, WORST, at_own_rate, read_report, trial_size
from cos2p.training.trainer import SubmodelTrainer
from tests.methods.budgets import asked, training
from tests.methods.fleet import Fleet, check_a_restart_changes_nothing, digits, digits_house, with_rates
from tests.submodel.strategies import CONFIGS, random_weights
from tests.tiny import VIT, assert_close, context, same

KEPT: dict[str, Any] = {
    "name": "cos2p",
    "window": {"rest": "kept", "schedule": "together"},
    "masks": {"heads": "random", "units": "random"},
    "exits": {"kind": "none"},
}
ALL = {**KEPT, "factors": {"below": 1.0}}
MIXED = {**KEPT, "factors": {"below": 0.3}}
"""Of the three devices the first two have a smaller rate than that."""


def roomy() -> Any:
    """Devices whose windows take more bytes than factors of rank 2."""
    return with_rates(digits_house(updates=6), 0.75, 0.75, 0.75)


def test_small_devices_train_factors_and_large_ones_windows_in_one_run() -> None:
    house = with_rates(digits_house(updates=9), 0.6, 0.6, 0.9)
    fleet = Fleet(house, {**KEPT, "factors": {"below": 0.7}}).run()
    names = list(fleet.context.members)
    kinds = {order.client: order.trainer for order in fleet.orders}
    assert kinds == dict(zip(names, ["factored", "factored", "submodel"], strict=True))
    assert len([note for note in fleet.notes if isinstance(note, Merged)]) == 9
    assert not [note for note in fleet.notes if note.kind in ("refused", "dropped", "excluded")]
    assert not [name for name in fleet.server.weights if is_adapter(name)]
    for name in ("blocks.0.q.weight", "blocks.1.fc2.weight", "exits.2.linear.weight"):
        assert not torch.equal(fleet.server.weights[name], fleet.start[name])


def test_factors_travel_in_few_bits() -> None:
    house = roomy()
    wire = house.training.wire.model_copy(update={"up": "int8", "down": "float16"})
    few = replace(house, training=house.training.model_copy(update={"wire": wire}))
    whole, packed = (Fleet(given, ALL).run() for given in (house, few))
    assert not [note for note in packed.notes if note.kind in ("refused", "dropped")]
    name = "blocks.0.fc2.weight"
    moved, exact = (fleet.server.weights[name] - fleet.start[name] for fleet in (packed, whole))
    assert 0 < float((moved - exact).norm()) < 0.5 * float(exact.norm())


def test_factors_try_learning_rates_and_train_with_the_bits_of_the_one_they_take() -> None:
    """Few enough samples that a try has fewer batches than the directions are looked for in."""
    fleet = Fleet(roomy(), ALL)
    order = next(order for order in fleet.orders if order.trainer == "factored")
    task, shard = fleet.server.orders.task(order), fleet.shards[order.client]
    tried_order = replace(order, rates=LADDERS["adan"])
    tried, _ = run_task(fleet.context.config, Task(tried_order, task.weights, task.prefix), shard, {})
    ratios = read_report(tried_order, tried.report)
    assert any(ratio not in (1.0, WORST) for ratio in ratios), "something was tried"
    plain = replace(order, lr=at_own_rate(tried_order, tried.report).lr)
    update, _ = run_task(fleet.context.config, Task(plain, task.weights, task.prefix), shard, {})
    assert same(dict(tried.delta), dict(update.delta))
    size = trial_size(make_contract(fleet.context.config, tried_order), len(shard.train))
    assert size is not None
    assert size.share(len(shard.train), 1) > replace(size, looks=0).share(len(shard.train), 1)


def test_a_restart_changes_nothing(tmp_path: Path) -> None:
    check_a_restart_changes_nothing(ALL, tmp_path, house=roomy())


def first(fleet: Fleet) -> tuple[Order, Task]:
    return fleet.orders[0], fleet.server.orders.task(fleet.orders[0])


def test_factors_do_not_come_and_both_go_back() -> None:
    fleet = Fleet(roomy(), ALL)
    config, (order, task) = fleet.context.config, first(fleet)
    assert sorted(task.weights) == sorted(name for name in fleet.start if name.startswith("exits.2."))
    update, _ = run_task(config, Task.from_bytes(task.to_bytes()), digits().shards[order.client], {})
    known = make_contract(config, order)
    assert {name: tuple(t.shape) for name, t in update.delta.items()} == known.answer(update.spec)
    assert tensor_bytes(update.delta) == known.upload()
    assert update.to_bytes() == run_task(config, task, digits().shards[order.client], {})[0].to_bytes()


def test_one_client_is_local_training() -> None:
    """The server's next model is the device's own with its factors merged, computed without the server's code."""
    fleet = Fleet(with_rates(digits_house(rounds=1), 0.75), {**ALL, "name": "cos2p-sync"})
    order, task = first(fleet)
    trainer = make_trainer(fleet.context.config, order)
    trainer.run(task, digits().shards[order.client], {})
    trained = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    fleet.run()
    local = merged({**fleet.start, **trained}, scale=2.0)
    assert_close(fleet.server.weights, {n: t for n, t in local.items() if not is_adapter(n)}, atol=1e-6)
    assert not torch.equal(local["blocks.0.v.weight"], fleet.start["blocks.0.v.weight"])


@given(family=st.sampled_from(sorted(CONFIGS)), seed=st.integers(0, 99), scale=st.sampled_from([0.5, 2.0]))
def test_decoded_factors_are_the_change_of_the_matrices(family: str, seed: int, scale: float) -> None:
    config, weights = CONFIGS[family], random_weights(CONFIGS[family], seed)
    rng = torch.Generator().manual_seed(seed)
    block, rank = seed % config.depth, 1 + seed % 3
    outputs, inputs = weights[f"blocks.{block}.fc2.weight"].shape
    up, down = torch.randn(rank, outputs, generator=rng), torch.randn(rank, inputs, generator=rng)
    place = f"blocks.{block}.adapters.fc2"
    spec = SubmodelSpec(0, (BlockKeep.full(config),) * config.depth, (config.depth,), fixed_embeddings=True)
    settings = LoraSettings(rank=rank, scale=scale, blocks=(block,), targets=("fc2",))
    delta = {f"{place}.up": -up, f"{place}.down": -down}
    item = Contribution("pi", spec, delta, 1, 0, weights, settings.model_dump(mode="json"))
    merge = FactoredMerge(config, rule="uniform")
    decoded = merge.decode(item, weights)
    end = merged({**weights, f"{place}.up": up, f"{place}.down": down}, scale)
    name = f"blocks.{block}.fc2.weight"
    assert list(decoded.delta) == [name]
    assert_close({name: weights[name] - decoded.delta[name]}, {name: end[name]}, atol=1e-4)
    merge.add(decoded, weights)
    assert_close({name: merge.apply(weights)[name]}, {name: end[name]}, atol=1e-4)


def test_directions_are_those_in_which_the_loss_falls_most() -> None:
    """Against the matrices' own gradients by plain backpropagation: nearly the best there are, unlike random ones."""
    torch.manual_seed(0)
    house = training(with_rates(digits_house(rounds=1), 0.75), Part("factors", 2))
    fleet = Fleet(house, {**ALL, "name": "cos2p-sync"})
    order, task = first(fleet)
    config, shard = fleet.context.config, digits().shards[order.client]
    few = replace(shard, train=shard.train.subset(np.arange(order.settings["batch"])))  # both looks see the same ones
    trainer = make_trainer(config, order)
    found: dict[str, torch.Tensor] = {}

    def look() -> float:
        found.update({n: p.detach().clone() for n, p in trainer.model.named_parameters() if is_adapter(n)})
        return 0.0

    trainer.fit = look  # type: ignore[method-assign]
    trainer.run(task, few, {})
    whole = ElasticTransformer(config, SubmodelSpec.full(config)).load({n: t.clone() for n, t in fleet.start.items()})
    inputs, labels = trainer.shard.batch(torch.arange(len(few.train)))
    torch.nn.functional.cross_entropy(whole(inputs)[-1], labels).backward()
    matrices = dict(whole.named_parameters())
    for name in (name for name in found if name.endswith(".down")):
        assert not found[name.removesuffix("down") + "up"].any()
        rows, gradient = found[name], matrices[name.replace(".adapters", "").replace(".down", ".weight")].grad
        assert gradient is not None
        assert_close({name: rows @ rows.T}, {name: torch.eye(len(rows))}, atol=1e-5)
        best, drawn = torch.linalg.svdvals(gradient)[: len(rows)].norm(), torch.linalg.qr(torch.randn_like(rows).T)[0]
        assert (gradient @ rows.T).norm() > 0.75 * best
        assert (gradient @ drawn).norm() < 0.75 * best


def test_windows_are_merged_as_without_factors() -> None:
    house = with_rates(digits_house(updates=6), 0.25, 0.25, 0.5)
    plain, factored = (Fleet(house, {**KEPT, "factors": {"below": below}}).run() for below in (0.0, 0.01))
    assert isinstance(factored.method.merge(), FactoredMerge)
    assert type(plain.method.merge()) is SegmentMerge
    assert same(plain.server.weights, factored.server.weights)


def test_a_product_that_is_too_large_is_refused_though_its_factors_are_small() -> None:
    fleet = Fleet(replace(roomy(), schedule=roomy().schedule.model_copy(update={"max_update_rms": 3.0})), ALL)
    order, task = first(fleet)
    update, _ = run_task(fleet.context.config, task, digits().shards[order.client], {})
    harmful = {name: torch.full_like(t, 2.9) if is_adapter(name) else t for name, t in update.delta.items()}
    before = dict(fleet.server.weights)
    reported = fleet.server.receive(order.client, replace(update, delta=harmful).to_bytes())
    reasons = [str(getattr(note, "reason", "")) for note in reported]
    assert any("at most 3 is let in" in reason for reason in reasons), reasons
    assert same(fleet.server.weights, before)


def test_a_top_window_stays_a_window() -> None:
    house = context(VIT.with_(dim=64, mlp=256, heads=4, depth=6), (0.8,))
    (name,) = house.members
    assert asked(build_method({**KEPT, "name": "topwindow", "factors": {"below": 1.0}}, house), name).trainer is (
        SubmodelTrainer
    )


def test_privacy_says_that_factors_are_not_covered() -> None:
    values = Recipe.load("quickstart").model_dump(mode="json", exclude_none=True)
    method = {**MIXED, "weighting": "uniform"}
    recipe = Recipe.parse({**values, "method": method, "privacy": {"noise": "central", "clip": 1.0, "multiplier": 1.0}})
    from cos2p.runtime.run_setup import build_run_setup, first_weights
    from cos2p.server.server import Server

    run_setup = build_run_setup(recipe)
    with pytest.raises(RecipeError, match=r"method\.factors\.below"):
        Server(run_setup.context, run_setup.method(), first_weights(recipe, run_setup.config))


def test_a_call_is_answered_with_the_same_size_every_time() -> None:
    house = context(VIT.with_(dim=64, mlp=256, heads=4, depth=6), (0.8,))
    (member,) = house.members.values()
    settings = {**KEPT, "factors": {"below": 1.0}}
    early, late = build_method(settings, house), build_method(settings, house)
    tasks = [early.assign(Call(member, turn, turn, turn, {})) for turn in range(3)]
    assert tasks[0].settings == tasks[1].settings == late.assign(Call(member, 2, 2, 2, {})).settings


def test_a_model_that_grows_has_nothing_for_factors_yet() -> None:
    values = Recipe.load("quickstart").model_dump(mode="json", exclude_none=True)
    with pytest.raises(RecipeError, match=r"set factors\.below = 0, or another schedule"):
        Recipe.parse({**values, "method": {"name": "cos2p", "form": "growing", "factors": {"below": 0.5}}})


def test_looking_for_directions_takes_time() -> None:
    fleet = Fleet(with_rates(digits_house(rounds=1), 0.75), ALL)
    order = fleet.orders[0]
    own, lora = (kind.contract_of(fleet.context.config, order) for kind in (FactoredTrainer, LoraTrainer))
    seen = 2 * order.settings["batch"] / 120
    more = own.flops(120, 0).training / lora.flops(120, 0).training - 1
    assert more == pytest.approx(seen / order.settings["epochs"])
