from __future__ import annotations

import pytest
import torch

from cos2p import model_config
from cos2p.errors import ConfigError
from cos2p.methods import build_method
from cos2p.methods.base import Call
from cos2p.models.layout import init_weights
from cos2p.models.transformer import ElasticTransformer
from cos2p.submodel.rates import SubmodelSize, cut, prunable, segment_costs
from cos2p.submodel.slicing import extract
from cos2p_rivals.leading import leading_spec, without_untrained
from tests.methods.fleet import Fleet, digits_house
from tests.methods.played import check_two_rounds, of
from tests.submodel.strategies import random_inputs, random_weights
from tests.tiny import VIT, context

NAMES = ("fedavg-adavit",)


@pytest.mark.parametrize("name", NAMES)
def test_two_rounds_on_digits(name: str) -> None:
    _, events = check_two_rounds({"name": name})
    assert all(0 < note["report"]["used_tokens"] <= 1 for note in of(events, "merged"))


def test_policies_are_averaged_over_those_who_held_their_heads() -> None:
    fleet = Fleet(digits_house(rounds=1), {"name": "fedavg-adavit"})
    first = dict(fleet.server.weights)
    specs = {order.client: order.spec for order in fleet.orders}
    name = "adavit.1.heads.bias"
    held = set().union(*(spec.keep(1).heads for spec in specs.values()))
    fleet.run()
    now = fleet.server.weights
    free = [h for h in range(fleet.context.config.groups) if h not in held]
    assert held
    assert free
    assert torch.equal(now[name][free], first[name][free])
    assert not torch.equal(now[name][sorted(held)], first[name][sorted(held)])
    assert not torch.equal(now["adavit.1.layers.weight"], first["adavit.1.layers.weight"])


@pytest.mark.parametrize("rate", [1 / 64, 1 / 16, 0.25, 0.5625, 1.0])
def test_the_budget_is_kept_and_small_submodels_lie_in_large_ones(rate: float) -> None:
    method = build_method({"name": "fedavg-adavit"}, context(rates=(rate, 0.5)))
    weights = method.initial_weights(init_weights(VIT, 0))
    calls = [Call(member, 0, 0, 0, weights) for member in method.context.members.values()]
    mine, other = (method.assign(call).spec.check(VIT) for call in calls)
    head, unit = segment_costs(VIT)
    assert sum(len(k.heads) * head + len(k.units) * unit for k in mine.window) <= rate * prunable(VIT) + 1e-6
    for a, b in zip(mine.window, other.window, strict=True):
        small, large = (a, b) if rate <= 0.5 else (b, a)
        assert set(small.heads) <= set(large.heads)
        assert set(small.units) <= set(large.units)


@pytest.mark.parametrize("name", NAMES)
def test_other_families_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="for vision transformers, the model is a bert"):
        build_method({"name": name}, context(model_config("bert-nano")))


def test_the_server_evaluates_the_largest_devices_submodel_with_its_policies() -> None:
    """In the full model's shapes: what nobody trains has no output, what was trained is scaled as in training."""
    method = build_method({"name": "fedavg-adavit"}, context(rates=(0.25, 0.5)))
    weights = method.initial_weights(random_weights(VIT, 1))
    opened = {n: torch.full_like(t, 100.0) if n.endswith("bias") and "adavit" in n else t for n, t in weights.items()}
    spec = leading_spec(VIT, cut(VIT, 0.5, ratio=0.0))
    small = ElasticTransformer(VIT, spec, rescale=True).load(extract(weights, VIT, spec)).train()
    whole = method.evaluation_model(VIT, method.evaluated_weights(opened), [VIT.depth]).eval()
    inputs = random_inputs(VIT, 2)
    with torch.no_grad():
        torch.testing.assert_close(whole(inputs)[0], small(inputs)[0], atol=1e-5, rtol=1e-5)
        shut = {n: torch.full_like(t, -100.0) if "layers.bias" in n else t for n, t in opened.items()}
        other = method.evaluation_model(VIT, method.evaluated_weights(shut), [VIT.depth]).eval()(inputs)[0]
    assert (other - whole(inputs)[0]).abs().max() > 1e-3  # the policies are obeyed


def test_a_block_without_segments_is_left_alone_by_the_scaling() -> None:
    spec = leading_spec(VIT, SubmodelSize(4, 1.0, heads=2, units=0))
    evaluated = without_untrained(init_weights(VIT, 0), VIT, spec, rescale=True)
    assert evaluated["blocks.3.o.weight"].abs().sum() == 0
    assert evaluated["blocks.0.fc2.weight"].abs().sum() == 0
    assert evaluated["blocks.0.o.weight"][:, :4].abs().sum() > 0
