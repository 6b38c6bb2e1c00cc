from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cos2p.aggregation.merge import Contribution
from cos2p.costs.fitting import make_spec
from cos2p.methods import build_method
from cos2p.methods.base import Call
from cos2p.models.layout import Weights, init_weights
from cos2p.models.spec import SubmodelSpec
from cos2p.submodel.rates import cut
from cos2p_rivals.fedpm.merge import MaskMerge
from cos2p_rivals.fedpm.method import FedPM, gumbel_top
from cos2p_rivals.fedpm.network import is_masked, masked_shapes, pack_bits, random_weight, segment_shapes
from tests.methods.fleet import Fleet, digits_house
from tests.methods.played import check_two_rounds
from tests.tiny import VIT, context, same

VARIANTS: dict[str, dict[str, Any]] = {
    "elements": {},
    "segments": {"variant": "segments"},
    "given": {"variant": "segments", "network": "given"},
}


def built(**settings: Any) -> FedPM:
    method = build_method({"name": "fedpm", **settings}, context())
    assert isinstance(method, FedPM)
    return method


def contribution(method: FedPM, weights: Weights, spec: SubmodelSpec, ones: bool, staleness: int = 0) -> Contribution:
    shapes = masked_shapes(VIT, spec) if method.elements else segment_shapes(VIT, spec)
    masks = {name: torch.full(shape, ones) for name, shape in shapes.items()}
    dense = {n: torch.zeros_like(weights[n]) for n in ("embed.cls", "blocks.0.norm1.weight")}
    return Contribution("pi-0", spec, dense, 10, staleness, weights, {}, {"mask": pack_bits(masks)})


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_rounds_on_digits(variant: str) -> None:
    simulation, _ = check_two_rounds({"name": "fedpm", **VARIANTS[variant]})
    start = simulation.server.method.initial_weights(init_weights(simulation.run_setup.config, 3))
    assert not same(start, simulation.server.weights)


@pytest.mark.parametrize("variant", ["segments", "given"])
def test_the_networks_own_weights_never_change(variant: str) -> None:
    fleet = Fleet(digits_house(rounds=2), {"name": "fedpm", **VARIANTS[variant]})
    config, first = fleet.context.config, dict(fleet.server.weights)
    fleet.run()
    masked = [name for name in first if name in init_weights(config, 0) and is_masked(config, name)]
    assert masked
    for name in masked:
        assert torch.equal(first[name], fleet.server.weights[name])
        expected = fleet.start[name] if variant == "given" else random_weight(config, name, fleet.context.seed, 1.0)
        assert torch.equal(first[name], expected)


@pytest.mark.parametrize("variant", ["elements", "segments"])
@pytest.mark.parametrize("ones", [True, False])
def test_equal_masks_give_that_mask_without_a_prior(variant: str, ones: bool) -> None:
    method = built(variant=variant, prior=0.0)
    weights = method.initial_weights(init_weights(VIT, 0))
    merge, spec = method.merge(), SubmodelSpec.full(VIT)
    for _ in range(3):
        merge.add(merge.decode(contribution(method, weights, spec, ones), weights), weights)
    updated = merge.apply(weights)
    names = masked_shapes(VIT, spec) if method.elements else segment_shapes(VIT, spec)
    for name in names:
        torch.testing.assert_close(updated[name], torch.full_like(updated[name], 0.99 if ones else 0.01))


@pytest.mark.parametrize("variant", ["elements", "segments"])
def test_a_prior_weighs_the_present_against_the_bits(variant: str) -> None:
    method = built(variant=variant, prior=2.0)
    weights = method.initial_weights(init_weights(VIT, 0))
    merge, spec = method.merge(), SubmodelSpec.full(VIT)
    for ones in (True, True, False):
        merge.add(merge.decode(contribution(method, weights, spec, ones), weights), weights)
    updated = merge.apply(weights)
    name = "blocks.0.q.weight" if method.elements else "fedpm.0.units"
    torch.testing.assert_close(updated[name], (2 * weights[name] + 0.99 + 0.99 + 0.01) / 5)


@pytest.mark.parametrize("variant", ["elements", "segments"])
def test_scores_that_nobody_held_stay_bitwise(variant: str) -> None:
    method = built(variant=variant)
    weights = method.initial_weights(init_weights(VIT, 0))
    merge, spec = method.merge(), make_spec(VIT, 0.5, ratio=0.0)
    merge.add(merge.decode(contribution(method, weights, spec, True), weights), weights)
    updated = merge.apply(weights)
    name = "blocks.1.fc1.weight" if method.elements else "fedpm.1.units"
    held = list(spec.keep(1).units)
    free = [u for u in range(VIT.mlp) if u not in held]
    assert torch.equal(updated[name][free], weights[name][free])
    assert (updated[name][held] > weights[name][held]).all()


def test_a_late_mask_moves_theta_from_where_it_stands_now() -> None:
    method = built(prior=0.0)
    old = method.initial_weights(init_weights(VIT, 0))
    now = {n: torch.full_like(t, 0.2) if is_masked(VIT, n) else t for n, t in old.items()}
    merge = method.merge()
    item = contribution(method, old, SubmodelSpec.full(VIT), True, staleness=1)
    merge.add(merge.decode(item, now), now)
    torch.testing.assert_close(merge.apply(now)["blocks.0.q.bias"], torch.full((16,), 0.99))


@given(st.sampled_from(["elements", "segments"]), st.floats(0.01, 1.0), st.integers(0, 30))
def test_exactly_the_budget_is_drawn(variant: str, rate: float, attempt: int) -> None:
    method = build_method({"name": "fedpm", "variant": variant}, context(rates=(rate,)))
    weights = method.initial_weights(init_weights(VIT, 0))
    spec = method.assign(Call(method.context.members["pi-0"], 0, attempt, attempt, weights)).spec.check(VIT)
    budget = cut(VIT, rate, ratio=0.0)
    assert sum(len(keep.heads) for keep in spec.window) == budget.heads
    assert sum(len(keep.units) for keep in spec.window) == budget.units


def test_likely_segments_are_drawn_more_often() -> None:
    logits = torch.tensor([4.0, 0.0, 0.0, -4.0])
    rng = torch.Generator().manual_seed(0)
    draws = [gumbel_top(logits, 2, rng) for _ in range(400)]
    counts = [sum(segment in drawn for drawn in draws) for segment in range(4)]
    assert all(len(set(drawn)) == 2 for drawn in draws)
    assert counts[0] > 380
    assert counts[3] < 40
    assert abs(counts[1] - counts[2]) < 80


def test_evaluation_is_the_network_under_a_draw_or_under_its_mean() -> None:
    method, mean = built(), built(evaluation="mean")
    weights = method.initial_weights(init_weights(VIT, 0))
    name = "blocks.2.fc1.weight"
    network = random_weight(VIT, name, method.context.seed, 1.0)
    drawn = method.evaluated_weights(weights)
    assert same(drawn, method.evaluated_weights(weights))
    assert drawn.keys() == init_weights(VIT, 0).keys()
    values = drawn[name] / network
    assert set(values.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(drawn["embed.cls"], weights["embed.cls"])
    torch.testing.assert_close(mean.evaluated_weights(weights)[name], network * weights[name])
    sure = {n: torch.ones_like(t) if is_masked(VIT, n) else t for n, t in weights.items()}
    assert torch.equal(method.evaluated_weights(sure)[name], network)


def test_evaluation_of_segments_drops_whole_heads_and_units() -> None:
    method = built(variant="segments")
    weights = method.initial_weights(init_weights(VIT, 0))
    evaluated = method.evaluated_weights(weights)
    assert evaluated.keys() == init_weights(VIT, 0).keys()
    columns = evaluated["blocks.0.fc2.weight"].abs().sum(0)
    assert 0 < int((columns == 0).sum()) < VIT.mlp


def test_the_merge_is_registered_with_its_prior() -> None:
    merge = built(prior=3.0).merge()
    assert isinstance(merge, MaskMerge)
    assert merge.prior == 3.0
