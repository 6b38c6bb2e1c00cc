"""No update, whatever is in it, moves a private sum by more than C."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cos2p import ModelConfig, init_weights
from cos2p.aggregation.merge import Contribution, SegmentMerge
from cos2p.aggregation.privacy.checks import PrivateMerge
from cos2p.aggregation.privacy.clipping import as_it_leaves, clipped, fresh_draw, norm_of
from cos2p.aggregation.settings import PrivacySettings
from cos2p.errors import TrainingError
from cos2p.messages import Update
from cos2p.models.layout import Weights
from cos2p.seeding import torch_rng
from tests.aggregation.brute import rounds
from tests.submodel.strategies import configs
from tests.tiny import VIT, same, window

VIT_WEIGHTS = init_weights(VIT, 0)
CLIPS = st.floats(1e-3, 1e3)


def seeded(*purpose: str | int) -> torch.Generator:
    return torch_rng(5, *purpose)


def private(config: ModelConfig, clip: float = 1.0, deviation: float = 0.0, denominator: float = 1.0) -> PrivateMerge:
    own = SegmentMerge(config, "uniform")
    return PrivateMerge(config, own, denominator, seeded, clip, deviation, clip_here=True)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.floats(-(2.0**60), 2.0**60, width=32), min_size=1, max_size=6), min_size=1, max_size=4), CLIPS
)
def test_a_clipped_update_is_no_longer_than_c(values: list[list[float]], clip: float) -> None:
    update = {str(number): torch.tensor(row) for number, row in enumerate(values)}
    short = clipped(update, clip)
    assert norm_of(short) <= clip
    if norm_of(update) <= 0.99 * clip:
        assert same(short, update)  # what is short enough is left alone, bitwise
    elif norm_of(update) > clip:
        assert norm_of(short) == pytest.approx(clip, rel=1e-4)


@settings(max_examples=20, deadline=None)
@given(st.data(), configs, CLIPS, st.floats(1e-3, 1e6), st.integers(0, 9))
def test_one_update_more_moves_the_sum_by_c_at_most(
    data: st.DataObject, config: ModelConfig, clip: float, scale: float, staleness: int
) -> None:
    """Sensitivity, for any update, among any others, at any staleness."""
    current, items = data.draw(rounds(config))
    *others, last = items
    last = replace(last, delta={n: t * scale for n, t in last.delta.items()}, staleness=staleness)
    sums = []
    for given_items in (others, [*others, last]):
        merge = private(config, clip)
        for item in given_items:
            merge.add(item, current)
        sums.append({name: merge.sum.get(name, torch.zeros_like(t)).double() for name, t in current.items()})
    moved = norm_of({name: sums[1][name] - sums[0][name] for name in current})
    assert moved <= clip * (1 + 1e-3)  # the others' sum is in single precision


def contribution(spec: object, delta: Weights) -> Contribution:
    return Contribution("pi-0", spec, delta, 3, 0, {})  # type: ignore[arg-type]


def test_the_denominator_is_fixed_whoever_takes_part() -> None:
    name = "blocks.0.norm1.weight"
    assert name in VIT_WEIGHTS
    spec, current = window(VIT, 0, 1), {name: torch.zeros(VIT.dim)}
    delta = {name: torch.full((VIT.dim,), 0.1)}
    for count in (1, 2, 3):
        merge = private(VIT, denominator=4.0)
        for _ in range(count):
            merge.add(contribution(spec, delta), current)
        torch.testing.assert_close(merge.apply(current)[name], torch.full((VIT.dim,), -0.1 * count / 4))


def test_noise_has_its_deviation_and_what_nobody_held_stands_still() -> None:
    spec = window(VIT, 1, 1)
    names = [name for name in VIT_WEIGHTS if name.startswith("blocks.1.")]
    merge = private(VIT, deviation=3.0, denominator=2.0)
    merge.add(contribution(spec, {name: torch.zeros_like(VIT_WEIGHTS[name]) for name in names}), VIT_WEIGHTS)
    after = merge.apply(VIT_WEIGHTS)
    assert all(after[name] is tensor for name, tensor in VIT_WEIGHTS.items() if name not in names)
    moved = torch.cat([(after[name] - VIT_WEIGHTS[name]).flatten() for name in names])
    assert float(moved.std()) == pytest.approx(1.5, rel=0.1)
    again = private(VIT, deviation=3.0, denominator=2.0)
    again.load_state(merge.state())  # the next round draws other noise, and a restored one the same
    assert int(again.rounds["closed"]) == 1


def update(delta: Weights) -> Update:
    report = {"loss": 0.5, "local_top1": 0.9, "prefix_recomputed": 1}
    return Update("pi-0", "pi-0#0", 0, window(VIT, 0, 1), delta, 3, report, {"x": torch.ones(1)})


def test_what_leaves_a_device() -> None:
    delta = {"a": torch.tensor([3.0, 4.0])}
    plain = update(delta)
    assert as_it_leaves(plain, PrivacySettings(), fresh_draw) is plain
    central = PrivacySettings(noise="central", clip=1.0, multiplier=2.0)
    left = as_it_leaves(plain, central, fresh_draw)
    torch.testing.assert_close(left.delta["a"], torch.tensor([0.6, 0.8]))
    assert left.report == {"prefix_recomputed": 1}  # no loss, no score
    assert left.extras == {}
    local = central.model_copy(update={"noise": "local"})
    one, two = (as_it_leaves(plain, local, fresh_draw).delta["a"] for _ in range(2))
    assert not torch.equal(one, two)  # fresh noise, which no seed gives away
    assert torch.equal(*(as_it_leaves(plain, local, seeded).delta["a"] for _ in range(2)))
    many = update({"a": torch.zeros(20_000)})
    assert float(as_it_leaves(many, local, fresh_draw).delta["a"].std()) == pytest.approx(2.0, rel=0.05)


def test_an_update_that_is_not_finite_does_not_leave() -> None:
    for value in (float("nan"), float("inf")):
        with pytest.raises(TrainingError, match="not finite"):
            clipped({"a": torch.tensor([value])}, 1.0)
