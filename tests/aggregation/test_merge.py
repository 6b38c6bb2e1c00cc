from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cos2p import ModelConfig, SubmodelSpec
from cos2p.aggregation.merge import Contribution, SegmentMerge
from cos2p.aggregation.weights import Rule
from cos2p.models.layout import Weights
from cos2p.models.spec import BlockKeep
from cos2p.submodel.slicing import extract
from cos2p.training.contract import as_received
from tests.aggregation.brute import contribution, paper_merge, random_delta, rounds, segments
from tests.submodel.strategies import configs, random_weights
from tests.tiny import VIT, assert_close, copy, same

RULES: tuple[Rule, ...] = ("paper", "uniform", "samples")
SMALL = SubmodelSpec(1, (BlockKeep((0, 2), (1, 5)),), (2,))
LARGE = SubmodelSpec(1, (BlockKeep((2, 3), (5, 6)), BlockKeep((1,), ())), (2, 3))


def merged(config: ModelConfig, items: list[Contribution], current: Weights, rule: Rule = "paper") -> Weights:
    merge = SegmentMerge(config, rule)
    for item in items:
        merge.add(item, current)
    return merge.apply(current)


def test_a_contribution_knows_what_its_device_began_from() -> None:
    received = random_weights(VIT, 3)
    item = Contribution("pi", SMALL, {}, 1, 0, received)
    sent = extract(received, VIT, SMALL)
    assert same(item.given(VIT), sent)
    assert item.given(VIT, ["blocks.1.q.weight"]).keys() == {"blocks.1.q.weight"}
    rounded = replace(item, down="float16").given(VIT)
    assert same(rounded, as_received(sent, "float16"))
    assert not same(rounded, sent)


# ---------------------------------------------------------------- the equation


@settings(max_examples=40)
@given(st.data(), configs)
def test_merging_is_the_papers_equation_segment_by_segment(data: st.DataObject, config: ModelConfig) -> None:
    current, items = data.draw(rounds(config))
    found, expected = merged(config, items, current), paper_merge(config, items, current)
    for name, tensor in found.items():
        torch.testing.assert_close(tensor.double(), expected[name], atol=1e-6, rtol=1e-5, msg=name)


@settings(max_examples=40)
@given(st.data(), configs, st.sampled_from(RULES))
def test_shares_add_up_to_one_wherever_someone_trained(data: st.DataObject, config: ModelConfig, rule: Rule) -> None:
    """If all holders say the same, that is what happens, however much each of them counts."""
    current, items = data.draw(rounds(config))
    alike = [
        Contribution(
            i.client, i.spec, {n: torch.full_like(t, 0.25) for n, t in i.delta.items()}, i.samples, 1, i.received
        )
        for i in items
    ]
    after = merged(config, alike, current, rule)
    for segment in segments(config):
        held = any(segment.held_by(item.spec, item.delta) for item in alike)
        for name, mask in segment.masks.items():
            step = (current[name] - after[name])[mask]
            torch.testing.assert_close(step, torch.full_like(step, 0.25 if held else 0.0), atol=1e-5, rtol=0)


@settings(max_examples=40)
@given(st.data(), configs, st.sampled_from(RULES))
def test_what_nobody_trained_stays_bitwise(data: st.DataObject, config: ModelConfig, rule: Rule) -> None:
    current, items = data.draw(rounds(config))
    before = copy(current)
    after = merged(config, items, current, rule)
    assert same(current, before)
    held_names = {name for item in items for name in item.delta}
    assert all(after[name] is current[name] for name in current if name not in held_names)
    for segment in segments(config):
        if not any(segment.held_by(item.spec, item.delta) for item in items):
            assert all(torch.equal(after[name][mask], before[name][mask]) for name, mask in segment.masks.items())


def test_the_fresher_of_two_opposite_updates_wins() -> None:
    current = random_weights(VIT, 0)
    older = {name: tensor + 5.0 for name, tensor in current.items()}
    delta = {name: tensor.abs() + 0.01 for name, tensor in random_delta(VIT, SMALL, 0).items()}
    against = {name: -tensor for name, tensor in delta.items()}
    items = [Contribution("fresh", SMALL, delta, 1, 0, current), Contribution("stale", SMALL, against, 1, 1, older)]
    step = extract({name: current[name] - new for name, new in merged(VIT, items, current).items()}, VIT, SMALL)
    assert all((tensor > 0).all() for tensor in step.values())


@pytest.mark.parametrize("rule", ["paper", "relative"])
def test_updates_of_zero_change_nothing_and_share_every_tensor(rule: Rule) -> None:
    current = random_weights(VIT, 0)
    nothing = {name: torch.zeros_like(tensor) for name, tensor in random_delta(VIT, SMALL, 0).items()}
    after = merged(VIT, [Contribution("a", SMALL, nothing, 1, 0, current)], current, rule)
    assert all(after[name] is current[name] for name in current)


def test_a_zero_update_does_not_dilute_the_others() -> None:
    current = random_weights(VIT, 0)
    nothing = {name: torch.zeros_like(tensor) for name, tensor in random_delta(VIT, SMALL, 0).items()}
    real = contribution(VIT, SMALL, current, seed=1)
    both = merged(VIT, [real, Contribution("idle", SMALL, nothing, 1, 0, current)], current)
    assert_close(both, merged(VIT, [real], current), atol=1e-7)


@settings(max_examples=20)
@given(st.data(), configs, st.sampled_from(RULES))
def test_the_order_of_arrival_does_not_matter(data: st.DataObject, config: ModelConfig, rule: Rule) -> None:
    current, items = data.draw(rounds(config))
    first, *others = (merged(config, list(order), current, rule) for order in list(permutations(items))[:6])
    for other in others:
        assert_close(first, other, atol=1e-6, rtol=1e-6)


def test_a_step_exponent_shortens_stale_updates_themselves() -> None:
    """τ = 3 and exponent ½: half the step, whatever the shares, which are normalised away."""
    current = random_weights(VIT, 0)
    item = contribution(VIT, SMALL, current, staleness=3)
    steps = []
    for exponent in (0.0, 0.5):
        merge = SegmentMerge(VIT, step_exponent=exponent)
        merge.add(item, current)
        steps.append({name: current[name] - new for name, new in merge.apply(current).items()})
    assert_close(steps[1], {name: step / 2 for name, step in steps[0].items()}, atol=1e-6)


# ---------------------------------------------------------------- averaging


@pytest.mark.parametrize("rule", ["uniform", "samples"])
def test_full_models_are_averaged(rule: Rule) -> None:
    current, spec, samples = random_weights(VIT, 0), SubmodelSpec.full(VIT), (1, 2, 5)
    trained = [extract(random_weights(VIT, 10 + i), VIT, spec) for i in range(3)]
    items = [
        Contribution(str(i), spec, {name: current[name] - end[name] for name in end}, samples[i], 0, current)
        for i, end in enumerate(trained)
    ]
    shares = [1 / 3] * 3 if rule == "uniform" else [n / 8 for n in samples]
    average = {name: sum(p * end[name] for p, end in zip(shares, trained, strict=True)) for name in trained[0]}
    after = merged(VIT, items, current, rule)
    assert_close({name: after[name] for name in average}, average, atol=1e-6)


def test_one_full_model_replaces_the_servers() -> None:
    current, end, spec = random_weights(VIT, 0), random_weights(VIT, 1), SubmodelSpec.full(VIT)
    delta = {name: current[name] - end[name] for name in extract(current, VIT, spec)}
    after = merged(VIT, [Contribution("a", spec, delta, 1, 0, current)], current, "uniform")
    assert_close({name: after[name] for name in delta}, {name: end[name] for name in delta}, atol=1e-6)


# ---------------------------------------------------------------- what is counted


def test_holders_are_counted_by_segment_and_forgotten_with_the_round() -> None:
    current = random_weights(VIT, 0)
    merge = SegmentMerge(VIT)
    merge.add(contribution(VIT, SMALL, current, 0), current)
    merge.add(contribution(VIT, LARGE, current, 1), current)
    assert merge.holders["heads.1"].tolist() == [1, 0, 2, 1]
    assert merge.holders["units.1"].tolist() == [0, 1, 0, 0, 0, 2, 1, 0, 0, 0]
    assert merge.holders["heads.2"].tolist() == [0, 1, 0, 0]
    assert merge.holders["exits.2.linear.bias"].item() == 2
    assert "heads.0" not in merge.holders
    merge.apply(current)
    assert merge.holders == {}


def test_mean_weights_for_the_log_by_hand() -> None:
    """Without drift γ is the mean |Δ|, in every segment; a submodel without heads has none."""
    current = random_weights(VIT, 0)
    spec = SubmodelSpec(1, (BlockKeep((), (1, 5)),), (2,))
    delta = {name: torch.full_like(tensor, 0.5) for name, tensor in random_delta(VIT, spec, 0).items()}
    means = SegmentMerge(VIT).add(Contribution("a", spec, delta, 1, 0, current), current)
    assert means == pytest.approx({"heads": 0.0, "units": 0.5, "shared": 0.5})


def test_an_update_may_be_forgotten_once_it_was_added() -> None:
    current = random_weights(VIT, 0)
    item, spare = contribution(VIT, SMALL, current), contribution(VIT, SMALL, current)
    merge = SegmentMerge(VIT)
    merge.add(item, current)
    for tensor in item.delta.values():
        tensor.fill_(float("nan"))
    assert same(merge.apply(current), merged(VIT, [spare], current))


def test_memory_does_not_grow_with_the_number_of_updates() -> None:
    current = random_weights(VIT, 0)
    merge = SegmentMerge(VIT)
    sizes = []
    for seed in range(4):
        merge.add(contribution(VIT, SMALL, current, seed), current)
        sizes.append(sum(tensor.nbytes for group in merge.state().values() for tensor in group.values()))
    assert len(set(sizes)) == 1


# ---------------------------------------------------------------- checkpoint


def test_a_round_goes_on_from_its_written_state_bit_for_bit() -> None:
    first, second = random_weights(VIT, 0), random_weights(VIT, 1)
    merge = SegmentMerge(VIT)
    merge.add(contribution(VIT, SMALL, second, 1), second)
    written = {group: safetensors.torch.save(tensors) for group, tensors in merge.state().items() if tensors}
    restored = SegmentMerge(VIT)
    restored.load_state({group: safetensors.torch.load(data) for group, data in written.items()})
    for one in (merge, restored):
        one.add(contribution(VIT, LARGE, first, 2, staleness=1), second)
    assert same(merge.holders, restored.holders)
    assert same(merge.apply(second), restored.apply(second))


def test_loaded_sums_are_copies() -> None:
    current = random_weights(VIT, 0)
    merge, other = SegmentMerge(VIT), SegmentMerge(VIT)
    merge.add(contribution(VIT, SMALL, current, 0), current)
    other.load_state(merge.state())
    expected = merged(VIT, [contribution(VIT, SMALL, current, 0)], current)
    merge.add(contribution(VIT, SMALL, current, 1), current)
    assert same(other.apply(current), expected)
