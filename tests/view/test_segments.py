from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cos2p.models.spec import BlockKeep, SubmodelSpec
from cos2p.tracking.event_kinds import Merged
from cos2p.view.segments import CoverageBuilder, MasksBuilder, Track
from tests.view.diary import MODEL, Diary

KEPT_A = {0: ([0, 1], [0, 1, 2, 3])}
KEPT_B = {0: ([1, 2], [2, 3, 4, 5]), 1: ([3], [7])}


def merged(gamma: float = 1.0, **kept: Any) -> Merged:
    return cast(Merged, Diary().merged(0.0, "x#0", gamma=gamma, **kept).reported()[0])


@given(st.integers(1, 40), st.data())
def test_bits_come_back_as_they_were_packed(size: int, data: st.DataObject) -> None:
    blocks = [data.draw(st.sets(st.integers(0, size - 1), min_size=1)) for _ in range(3)]
    packed = SubmodelSpec(0, tuple(BlockKeep.of([0], units) for units in blocks), (3,)).to_dict()["window"]
    track = Track(depth=3, size=size)
    bits = track.decode([units for _, units in packed]).reshape(3, track.stride)
    assert [set(np.flatnonzero(row).tolist()) for row in bits] == blocks


def test_coverage_by_hand() -> None:
    coverage = CoverageBuilder(MODEL)
    coverage.merged(merged(blocks=KEPT_A), 0, 1)
    coverage.merged(merged(blocks=KEPT_A), 0, 2)
    coverage.merged(merged(blocks=KEPT_B), 1, 2)
    found = coverage.document()
    assert found["heads"] == [[2, 3, 1, 0], [0, 0, 0, 1]]
    assert found["units"] == [[2, 2, 3, 3, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0, 0, 1]]
    assert found["heads_clients"] == [[1, 2, 1, 0], [0, 0, 0, 1]]
    assert found["units_clients"] == [[1, 1, 2, 2, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0, 0, 1]]
    assert found["heads_last"] == [[2, 2, 2, 0], [0, 0, 0, 2]]
    assert found["units_last"] == [[2, 2, 2, 2, 2, 2, 0, 0], [0, 0, 0, 0, 0, 0, 0, 2]]


def test_an_update_that_only_tells_has_trained_nothing() -> None:
    coverage = CoverageBuilder(MODEL)
    coverage.merged(replace(merged(blocks=KEPT_A), window=[2, 2], kept=[]), 0, 1)
    coverage.merged(merged(blocks=KEPT_A), 1, 1)
    assert coverage.document()["heads"] == [[1, 1, 0, 0], [0, 0, 0, 0]]
    assert coverage.aggregated() == [None, 1.0]


def test_weights_by_hand() -> None:
    """a (γ 3) and b (γ 1) share head 1 and units 2, 3; b alone holds head 2, units 4, 5 and block 1."""
    coverage = CoverageBuilder(MODEL)
    coverage.merged(merged(3.0, blocks=KEPT_A), 0, 1)
    coverage.merged(merged(1.0, blocks=KEPT_B), 1, 1)
    heads_a, units_a = (1 + 3 / 4) / 2, (1 + 1 + 3 / 4 + 3 / 4) / 4
    heads_b, units_b = (1 / 4 + 1 + 1) / 3, (1 / 4 + 1 / 4 + 1 + 1 + 1) / 5
    assert coverage.aggregated() == pytest.approx([(heads_a + units_a) / 2, (heads_b + units_b) / 2])
    coverage.merged(merged(0.2, blocks=KEPT_A), 0, 2)
    assert coverage.aggregated() == pytest.approx([1.0])  # alone
    assert coverage.aggregated() == []


def test_an_update_that_counts_for_nothing_weighs_nothing() -> None:
    coverage = CoverageBuilder(MODEL)
    coverage.merged(merged(0.0, blocks=KEPT_A), 0, 1)
    assert coverage.aggregated() == [0.0]


def test_a_weight_that_is_not_known_is_none() -> None:
    coverage = CoverageBuilder(MODEL)
    coverage.merged(replace(merged(blocks=KEPT_A), weight=None), 0, 1)
    assert coverage.aggregated() == [None]


def test_masks_and_agreement_by_hand() -> None:
    """Block 0 is the only one both have: heads {0,1} and {1,2} share one of three, units two of six."""
    coverage = CoverageBuilder(MODEL)
    book = MasksBuilder(coverage.tracks)
    book.merged(merged(blocks={0: ([3], [7])}), 0, 1)
    book.merged(merged(blocks=KEPT_A), 0, 2)  # the last visit is what counts
    book.merged(merged(blocks=KEPT_B), 1, 3)
    book.merged(merged(blocks={1: ([0], [0])}), 2, 3)
    found = book.document(4)
    assert found["kept"][0] == [{"block": 0, "heads": "03", "units": "0f", "version": 2}]
    assert [mask["block"] for mask in found["kept"][1]] == [0, 1]
    assert found["kept"][3] == []
    assert found["agreement_heads"] == [
        [1.0, 0.333, None, None], [0.333, 1.0, 0.0, None], [None, 0.0, 1.0, None], [None] * 4,
    ]  # fmt: skip
    assert found["agreement_units"][0] == [1.0, 0.333, None, None]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.sets(st.integers(0, 7), min_size=1)), max_size=12))
def test_agreement_is_what_counting_gives(visits: list[tuple[int, int, set[int]]]) -> None:
    book = MasksBuilder(CoverageBuilder(MODEL).tracks)
    last: dict[int, dict[int, set[int]]] = {client: {} for client in range(4)}
    for client, block, units in visits:
        book.merged(merged(blocks={block: ([0], sorted(units))}), client, 1)
        last[client][block] = units
    found = book.document(4)["agreement_units"]
    for one in range(4):
        for other in range(4):
            common = last[one].keys() & last[other].keys()
            either = sum(len(last[one][b] | last[other][b]) for b in common)
            both = sum(len(last[one][b] & last[other][b]) for b in common)
            assert found[one][other] == (round(both / either, 3) if either else None)
