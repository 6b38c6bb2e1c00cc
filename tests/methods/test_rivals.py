"""What must hold for every rival: the budget, untouched segments, plain training at full size, whole runs, restarts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cos2p import ModelConfig, SubmodelSpec
from cos2p.devices.device import device
from cos2p.methods import build_method, make_contract
from cos2p.methods.base import Assignment, Call, Member
from cos2p.models.layout import init_weights
from cos2p.models.transformer import ElasticTransformer
from cos2p.submodel.rates import prunable, segment_costs
from cos2p.submodel.slicing import extract, scatter
from cos2p.tracking.event_kinds import Merged
from cos2p.training.evaluation import evaluate_exits
from tests.methods.fleet import Fleet, digits, digits_house, with_rates
from tests.submodel.strategies import random_inputs, random_weights
from tests.tiny import VIT, assert_close, context, copy, same

WIDTH_ONLY: dict[str, dict[str, Any]] = {
    "fedrolex": {},
    "rafed": {},
    "ramfed": {},
    "prunefl": {"initial_rounds": 1, "period": 2},
    "fedavg-platon": {},
    "fedasync-platon": {},
}
FULL: dict[str, dict[str, Any]] = {"fedasync": {}, "fedbuff": {}}
THIN: dict[str, dict[str, Any]] = {"fedrolex-official": {}, "heterofl": {}}
RIVALS = WIDTH_ONLY | FULL | THIN
AS_LOCAL_TRAINING: dict[str, dict[str, Any]] = {
    "fedasync": {"alpha": 1.0, "rho": 0.0},
    "fedasync-platon": {"alpha": 1.0},
    "fedbuff": {"buffer": 1},
}
"""Settings under which one client is on its own."""


def assigned(name: str, config: ModelConfig, rate: float, version: int = 0) -> Assignment:
    tiny = context(config, rates=(rate, 1.0))
    method = build_method({"name": name, **RIVALS[name]}, tiny)
    member = Member("pi-0", device("laptop", name="pi-0"), rate, batch=4, samples=10)
    return method.assign(Call(member, version, version, version, init_weights(config, 0)))


def cost(config: ModelConfig, spec: SubmodelSpec) -> int:
    head, unit = segment_costs(config)
    return sum(head * len(keep.heads) + unit * len(keep.units) for keep in spec.window)


@given(st.sampled_from(sorted(WIDTH_ONLY)), st.floats(0.001, 1.0), st.integers(0, 40))
def test_a_submodel_never_costs_more_than_its_rate(name: str, rate: float, version: int) -> None:
    spec = assigned(name, VIT, rate, version).spec.check(VIT)
    assert cost(VIT, spec) <= rate * prunable(VIT) + 1e-6
    assert spec.exits == (VIT.depth,)
    assert spec.frozen == 0


@given(st.sampled_from(sorted(WIDTH_ONLY)), st.integers(0, 40))
def test_a_submodel_uses_all_its_budget_allows(name: str, version: int) -> None:
    config = VIT.with_(mlp=16)
    spec = assigned(name, config, 0.25, version).spec
    assert sum(len(keep.heads) for keep in spec.window) == 4
    assert sum(len(keep.units) for keep in spec.window) == 16


@pytest.mark.parametrize("name", [*WIDTH_ONLY, *THIN])
def test_width_only_rivals_rescale_in_training(name: str) -> None:
    settings = assigned(name, VIT, 0.25).settings.model_dump()
    assert settings.get("local", settings)["rescale"] is True


@pytest.mark.parametrize("name", WIDTH_ONLY)
def test_extract_and_scatter_leave_the_model_as_it_was(name: str) -> None:
    spec, weights = assigned(name, VIT, 0.2, 3).spec, random_weights(VIT, 1)
    before = copy(weights)
    assert same(scatter(extract(weights, VIT, spec), weights, VIT, spec), before)


@pytest.mark.parametrize("name", WIDTH_ONLY)
@pytest.mark.parametrize("rate", [0.03, 0.3])
def test_a_submodel_infers_like_the_full_model_without_the_rest(name: str, rate: float) -> None:
    spec, weights, inputs = assigned(name, VIT, rate, 2).spec, random_weights(VIT, 2), random_inputs(VIT, 2)
    with torch.no_grad():
        small = ElasticTransformer(VIT, spec).load(extract(weights, VIT, spec)).eval()(inputs)[0]
        masked = copy(weights)
        for block, keep in enumerate(spec.window):
            heads = [h for h in range(VIT.groups) if h not in keep.heads]
            units = [u for u in range(VIT.mlp) if u not in keep.units]
            masked[f"blocks.{block}.o.weight"].view(VIT.dim, VIT.groups, -1)[:, heads] = 0
            masked[f"blocks.{block}.fc2.weight"][:, units] = 0
        full_spec = SubmodelSpec.full(VIT)
        full = ElasticTransformer(VIT, full_spec).load(extract(masked, VIT, full_spec)).eval()(inputs)[0]
    torch.testing.assert_close(small, full, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", RIVALS)
def test_one_client_with_the_whole_model_is_plain_local_training(name: str) -> None:
    settings = {**RIVALS[name], **AS_LOCAL_TRAINING.get(name, {}), "name": name}
    alone = with_rates(digits_house(rounds=1), 1.0)
    fleet = Fleet(alone, settings).run()
    plain = Fleet(alone, {"name": "fedavg"}).run()
    assert_close(fleet.server.weights, plain.server.weights, atol=1e-6)


@pytest.mark.parametrize("name", WIDTH_ONLY)
def test_what_nobody_held_stays_bitwise(name: str) -> None:
    fleet = Fleet(with_rates(digits_house(rounds=1), 0.2), {"name": name, **RIVALS[name]}).run()
    config, spec = fleet.context.config, fleet.orders[0].spec
    touched = {n: torch.zeros_like(t) for n, t in fleet.start.items()}
    scatter({n: torch.ones_like(t) for n, t in extract(touched, config, spec).items()}, touched, config, spec)
    for tensor, before, held in zip(fleet.server.weights.values(), fleet.start.values(), touched.values(), strict=True):
        assert torch.equal(tensor[held == 0], before[held == 0])
    assert not same(fleet.server.weights, fleet.start)


@pytest.mark.parametrize("name", RIVALS)
def test_a_whole_run_on_digits(name: str) -> None:
    fleet = Fleet(digits_house(updates=9), {"name": name, **RIVALS[name]}).run()
    assert fleet.done == "max_updates"
    assert not [note for note in fleet.notes if note.kind in ("refused", "dropped", "excluded")]
    merged = [note for note in fleet.notes if isinstance(note, Merged)]
    assert len(merged) == 9
    assert all(math.isfinite(note.report["loss"]) for note in merged)
    assert all(0 <= note.report["local_top1"] <= 100 for note in merged)
    assert all(torch.isfinite(tensor).all() for tensor in fleet.server.weights.values())
    assert not same(fleet.server.weights, fleet.start)
    run_setup, evaluated = digits(), fleet.method.evaluated_weights(fleet.server.weights)
    model = fleet.method.evaluation_model(run_setup.config, evaluated, [1, 2])
    scores = evaluate_exits(model, run_setup.bundle.test, run_setup.recipe.data.normalize)
    assert all(math.isfinite(scores[depth]["top1"]) for depth in (1, 2))


@pytest.mark.parametrize("name", [*WIDTH_ONLY, *THIN])
def test_small_devices_work_less_and_need_less(name: str) -> None:
    fleet = Fleet(digits_house(rounds=1), {"name": name, **RIVALS[name]})
    known = [make_contract(fleet.context.config, order) for order in fleet.orders]
    work = [contract.flops(30, 5).training for contract in known]
    memory = [contract.memory(30).total for contract in known]
    assert work == sorted(set(work))
    assert memory == sorted(set(memory))
