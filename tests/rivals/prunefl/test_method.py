from __future__ import annotations

from typing import Any

import pytest
import torch

from cos2p.messages import Order, Update
from cos2p.methods import build_method
from cos2p.methods.base import Assignment, Call
from cos2p.models.layout import Weights
from cos2p.models.spec import BlockKeep, SubmodelSpec
from cos2p.models.transformer import ElasticTransformer
from cos2p.submodel.slicing import extract
from cos2p_rivals.prunefl.method import PruneFl
from tests.methods.fleet import Fleet, digits_house
from tests.submodel.strategies import random_inputs, random_weights
from tests.tiny import VIT, context, order, same

CONFIG = VIT.with_(mlp=16)
WEIGHTS = random_weights(CONFIG, 0)


def prunefl(*rates: float, **settings: Any) -> PruneFl:
    method = build_method({"name": "prunefl", **settings}, context(CONFIG, rates=rates))
    assert isinstance(method, PruneFl)
    return method


def call(method: PruneFl, version: int, client: str = "pi-0") -> Assignment:
    return method.assign(Call(method.context.members[client], version, version, version, WEIGHTS))


def report(method: PruneFl, spec: SubmodelSpec, gain: dict[str, torch.Tensor], samples: int = 10) -> None:
    """An update that says of every segment it holds what `gain` says of it."""
    extras: Weights = {}
    for block, keep in enumerate(spec.window):
        extras[f"heads.{block}"] = gain["heads"].view(4, -1)[block, list(keep.heads)]
        extras[f"units.{block}"] = gain["units"].view(4, -1)[block, list(keep.units)]
    given: Order = order(spec)
    method.accepted(given, Update("pi-0", given.task, 0, spec, {}, samples, extras=extras))


def gains(seed: int = 0) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return {"heads": torch.rand(16, generator=rng), "units": torch.rand(64, generator=rng)}


def held(keep: tuple[BlockKeep, ...]) -> set[tuple[int, int]]:
    return {(block, unit) for block, kept in enumerate(keep) for unit in kept.units}


def test_the_first_ranking_is_by_gradient() -> None:
    method, gain = prunefl(0.25, 0.5, initial_rounds=2), gains()
    assert call(method, 0).spec != call(method, 1).spec  # random until then
    report(method, SubmodelSpec.full(CONFIG), gain)
    spec = call(method, 2).spec
    best = set(torch.topk(gain["units"], 16).indices.tolist())
    assert held(spec.window) == {(number // 16, number % 16) for number in best}
    assert {(b, h) for b, kept in enumerate(spec.window) for h in kept.heads} == {
        (number // 4, number % 4) for number in torch.topk(gain["heads"], 4).indices.tolist()
    }


def test_sets_of_small_devices_lie_inside_those_of_large_ones() -> None:
    method = prunefl(0.125, 0.5, 0.25, initial_rounds=1)
    report(method, SubmodelSpec.full(CONFIG), gains())
    small, large, middle = (held(call(method, 1, f"pi-{i}").spec.window) for i in range(3))
    assert small < middle < large


def test_reports_are_averaged_by_samples() -> None:
    method = prunefl(0.25, initial_rounds=1)
    one, three = gains(1), gains(2)
    report(method, SubmodelSpec.full(CONFIG), one, samples=1)
    report(method, SubmodelSpec.full(CONFIG), three, samples=3)
    method.reconfigure(WEIGHTS, 1)
    expected = (one["units"] + 3 * three["units"]) / 4
    assert method.sets["units"][16] == torch.topk(expected, 16).indices.tolist()


def test_a_set_changes_by_at_most_rho_at_a_time() -> None:
    method = prunefl(0.25, 0.5, initial_rounds=1)
    report(method, SubmodelSpec.full(CONFIG), gains(1))
    method.reconfigure(WEIGHTS, 1)
    before = {kind: {n: set(s) for n, s in sets.items()} for kind, sets in method.sets.items()}
    report(method, SubmodelSpec.full(CONFIG), gains(7))
    method.reconfigure(WEIGHTS, 11)
    for kind, sets in method.sets.items():
        for size, numbers in sets.items():
            assert 0 < len(set(numbers) - before[kind][size]) <= 0.3 * size


def test_rho_is_halved_after_its_half_life() -> None:
    method = prunefl(0.25)
    assert [method.turnover(q) for q in (0, 10_000)] == [0.3, 0.15]


def test_before_a_reconfiguration_devices_try_others() -> None:
    method = prunefl(0.25, initial_rounds=1, period=4)
    report(method, SubmodelSpec.full(CONFIG), gains())
    usual = [held(call(method, version).spec.window) for version in (1, 2, 3)]
    assert usual[0] == usual[1] == usual[2]
    probing = held(call(method, 4).spec.window)
    assert len(probing) == 16
    assert len(probing - usual[0]) == 4  # ⌊0.3 · 16⌋
    assert method.next == 5


def test_what_was_not_reported_again_keeps_its_old_estimate() -> None:
    method = prunefl(0.25, initial_rounds=1)
    report(method, SubmodelSpec.full(CONFIG), gains(1))
    method.reconfigure(WEIGHTS, 1)
    known = method._estimate("units").clone()
    spec = call(method, 2).spec
    report(method, spec, gains(9))
    method.reconfigure(WEIGHTS, 11)
    fresh = {block * 16 + unit for block, unit in held(spec.window)}
    others = [number for number in range(64) if number not in fresh]
    assert torch.equal(method._estimate("units")[others], known[others])
    assert not torch.equal(method._estimate("units"), known)


def test_the_papers_rule_may_leave_a_budget_unused() -> None:
    full, thrifty = prunefl(0.5, initial_rounds=1), prunefl(0.5, initial_rounds=1, stop="rate")
    gain = gains()
    gain["units"][4:] = 1e-6  # four units are worth it, the others are not
    for method in (full, thrifty):
        report(method, SubmodelSpec.full(CONFIG), gain)
        method.reconfigure(WEIGHTS, 1)
    assert len(full.sets["units"][32]) == 32
    assert sorted(thrifty.sets["units"][32]) == [0, 1, 2, 3]


@pytest.mark.parametrize("rescale", [True, False])
def test_the_evaluated_model_is_the_pruned_one_as_it_was_trained(rescale: bool) -> None:
    method = prunefl(0.25, 0.5, initial_rounds=1, rescale=rescale)
    assert same(method.evaluated_weights(WEIGHTS), WEIGHTS)  # no mask yet
    report(method, SubmodelSpec.full(CONFIG), gains())
    spec = call(method, 1, "pi-1").spec
    full, inputs = SubmodelSpec.full(CONFIG), random_inputs(CONFIG, 1)
    pruned = method.evaluated_weights(WEIGHTS)
    with torch.no_grad():
        server = ElasticTransformer(CONFIG, full).load(extract(pruned, CONFIG, full)).eval()(inputs)[0]
        device = (
            ElasticTransformer(CONFIG, spec, rescale=rescale).load(extract(WEIGHTS, CONFIG, spec)).train()(inputs)[0]
        )
    torch.testing.assert_close(server, device, atol=1e-5, rtol=1e-4)


def test_state_goes_through_a_checkpoint() -> None:
    method, restored = prunefl(0.25, 0.5, initial_rounds=1), prunefl(0.25, 0.5, initial_rounds=1)
    report(method, SubmodelSpec.full(CONFIG), gains(1))
    call(method, 1)
    report(method, call(method, 2).spec, gains(2))
    values, tensors = method.state()
    restored.load_state(values, tensors)
    assert call(restored, 12).spec == call(method, 12).spec
    assert restored.sets == method.sets


def test_a_run_reconfigures_on_what_devices_reported() -> None:
    fleet = Fleet(digits_house(rounds=5), {"name": "prunefl", "initial_rounds": 1, "period": 2}).run()
    method = fleet.method
    assert isinstance(method, PruneFl)
    assert method.next == 5
    assert not method._known["units"].isnan().all()
