from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cos2p import ModelConfig, SubmodelSpec
from cos2p.aggregation.merge import Contribution
from cos2p.aggregation.weights import Rule, update_weights
from cos2p.models.layout import Weights
from cos2p.models.spec import BlockKeep
from cos2p.submodel.segments import SegmentValues, segment_positions
from tests.aggregation.brute import contribution, moved, paper_gamma, random_delta, rounds, segments, spread_out
from tests.submodel.strategies import configs, random_weights
from tests.tiny import VIT, window

ONE_UNIT = SubmodelSpec(0, (BlockKeep((), (3,)),), (1,))


def weights_of(item: Contribution, current: Weights, rule: Rule = "paper", config: ModelConfig = VIT) -> SegmentValues:
    return update_weights(rule, config, item.spec, item.delta, current, item.received, item.samples)


@settings(max_examples=40)
@given(st.data(), configs)
def test_gamma_is_the_papers_equation_segment_by_segment(data: st.DataObject, config: ModelConfig) -> None:
    current, items = data.draw(rounds(config))
    for item in items:
        gamma, full = weights_of(item, current, config=config), spread_out(config, item.spec, item.delta)
        for segment in segments(config):
            if not segment.held_by(item.spec, item.delta):
                continue
            value = gamma[segment.key]
            if segment.place is not None:
                places = segment_positions(config, item.spec, segment.key)
                assert places is not None
                value = value[places.tolist().index(segment.place)]
            assert value.item() == pytest.approx(paper_gamma(segment, full, current, item.received), rel=1e-5)


def test_gamma_by_hand() -> None:
    """A unit has 33 scalars. An update of 0.1 each is ‖Δ‖₁ = 3.3; a drift of 2 each is 66: γ = 3.3 / (66 + 33)."""
    received = random_weights(VIT, 0)
    current = {name: tensor + 2 for name, tensor in received.items()}
    delta = {name: torch.full_like(tensor, 0.1) for name, tensor in random_delta(VIT, ONE_UNIT, 0).items()}
    fresh = Contribution("a", ONE_UNIT, delta, 1, 0, received=current)
    stale = Contribution("a", ONE_UNIT, delta, 1, 1, received=received)
    assert weights_of(fresh, current)["units.0"].tolist() == pytest.approx([0.1])
    assert weights_of(stale, current)["units.0"].tolist() == pytest.approx([3.3 / 99])


def test_equal_updates_count_less_the_more_the_model_moved_meanwhile() -> None:
    current = random_weights(VIT, 0)
    received = {name: tensor + 0.5 for name, tensor in current.items()}
    far = {name: tensor + 1.0 for name, tensor in current.items()}
    spec = window(VIT, 1)
    by_age = [weights_of(contribution(VIT, spec, version, seed=1), current) for version in (current, received, far)]
    for key in by_age[0]:
        fresh, stale, staler = (gamma[key] for gamma in by_age)
        assert (fresh > stale).all()
        assert (stale > staler).all()


def test_rules_that_ignore_the_updates_size() -> None:
    current = random_weights(VIT, 0)
    item = contribution(VIT, window(VIT, 1), moved(current, 0), staleness=3, samples=7)
    for rule, value in (("uniform", 1.0), ("samples", 7.0)):
        assert all((gamma == value).all() for gamma in weights_of(item, current, rule).values())


def test_an_update_of_zero_counts_nothing() -> None:
    current = random_weights(VIT, 0)
    spec = window(VIT, 1)
    delta = {name: torch.zeros_like(tensor) for name, tensor in random_delta(VIT, spec, 0).items()}
    for received in (current, moved(current, 0)):
        gamma = weights_of(Contribution("a", spec, delta, 1, 0, received), current)
        assert all((value == 0).all() for value in gamma.values())


def test_a_block_without_heads_has_no_weight_for_them() -> None:
    current = random_weights(VIT, 0)
    gamma = weights_of(contribution(VIT, ONE_UNIT, moved(current, 0)), current)
    assert gamma["heads.0"].shape == (0,)
    assert gamma["units.0"].shape == (1,)
