from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from cos2p.messages import Update
from cos2p.methods import width_spec
from cos2p.seeding import torch_rng
from cos2p_rivals.segment_reports import reported
from cos2p_rivals.segments import best_first, by_block, even_order, held, per_block, scale_outputs
from tests.submodel.strategies import random_weights
from tests.tiny import VIT, same


@given(st.integers(1, 6), st.integers(1, 8), st.integers(0, 48), st.booleans())
def test_every_beginning_of_the_even_order_is_spread_evenly(blocks: int, segments: int, count: int, mix: bool) -> None:
    order = even_order(blocks, segments, torch_rng(0, "test") if mix else None)
    assert sorted(order) == list(range(blocks * segments))
    counts = [len(kept) for kept in by_block(order[:count], blocks, segments)]
    assert max(counts) - min(counts) <= 1


def test_best_first_puts_untried_segments_first_and_breaks_ties_by_the_order() -> None:
    scores = torch.tensor([0.5, torch.inf, 0.5, 2.0, torch.inf])
    assert best_first(scores, [4, 2, 1, 0, 3]) == [4, 1, 3, 2, 0]


def test_reports_are_numbered_through_all_blocks() -> None:
    spec = width_spec([[0, 2], [1], [], [3]], [[], [5], [0, 1], [9]])
    extras = {
        "heads.0": torch.tensor([1.0, 2.0]),
        "heads.3": torch.tensor([4.0]),
        "units.2": torch.tensor([7.0, 8.0]),
    }
    update = Update("pi", "pi#0", 0, spec, {}, 1, extras=extras)
    numbers, values = reported(update, VIT, "heads")
    assert (numbers.tolist(), values.tolist()) == ([0, 2, 15], [1.0, 2.0, 4.0])
    numbers, values = reported(update, VIT, "units")
    assert (numbers.tolist(), values.tolist()) == ([20, 21], [7.0, 8.0])


def test_segments_by_their_key() -> None:
    spec = width_spec([[0, 2], [1], [], [3]], [[], [5], [0, 1], [9]])
    assert (held(spec, "heads.0").tolist(), held(spec, "units.2").tolist(), held(spec, "heads.2").tolist()) == (
        [0, 2], [0, 1], [],
    )  # fmt: skip
    assert (per_block(VIT, "heads"), per_block(VIT, "heads.3"), per_block(VIT, "units.1")) == (4, 4, 10)


def test_outputs_are_scaled_segment_by_segment_and_nothing_else_is() -> None:
    weights = random_weights(VIT, 0)
    scaled = scale_outputs(weights, {"heads.1": torch.tensor([0.0, 1.0, 2.0, 1.0]), "units.3": torch.zeros(10)}, VIT)
    before, after = (w["blocks.1.o.weight"].view(VIT.dim, 4, -1) for w in (weights, scaled))
    assert torch.equal(after[:, 0], torch.zeros_like(after[:, 0]))
    assert torch.equal(after[:, [1, 3]], before[:, [1, 3]])
    assert torch.equal(after[:, 2], 2 * before[:, 2])
    assert not scaled["blocks.3.fc2.weight"].any()
    others = weights.keys() - {"blocks.1.o.weight", "blocks.3.fc2.weight"}
    assert same({n: weights[n] for n in others}, {n: scaled[n] for n in others})
