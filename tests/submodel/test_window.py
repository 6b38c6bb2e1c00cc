from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cos2p.errors import ConfigError
from cos2p.submodel.rates import (
    Schedule,
    balanced_start,
    exit_depths,
    positions,
    rolling_start,
    tier_offset,
    tier_offsets,
    together_start,
    window_start,
)

SCHEDULES = ("rolling", "balanced")


@st.composite
def windows(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """Depth, blocks, cycle, offset."""
    depth = draw(st.integers(1, 24))
    return depth, draw(st.integers(1, depth)), draw(st.integers(0, 500)), draw(st.integers(0, 50))


def visits(depth: int, blocks: int, starts: list[int]) -> list[int]:
    return [sum(start <= block < start + blocks for start in starts) for block in range(depth)]


@given(windows(), st.sampled_from(SCHEDULES), st.data())
def test_a_window_lies_inside_the_model(window: tuple[int, int, int, int], schedule: str, data: st.DataObject) -> None:
    depth, blocks, cycle, offset = window
    coverage = data.draw(st.lists(st.integers(0, 9), min_size=depth, max_size=depth))
    start = window_start(schedule, coverage, blocks, cycle, offset)  # type: ignore[arg-type]
    assert 0 <= start <= depth - blocks


@given(windows())
def test_rolling_visits_every_block_and_the_last_exit_within_one_turn(window: tuple[int, int, int, int]) -> None:
    depth, blocks, cycle, offset = window
    starts = [rolling_start(depth, blocks, cycle + i, offset) for i in range(depth - blocks + 1)]
    assert sorted(starts) == list(range(depth - blocks + 1))
    assert min(visits(depth, blocks, starts)) >= 1
    assert depth in {start + blocks for start in starts}


def test_rolling_by_hand() -> None:
    assert [rolling_start(8, 6, cycle, 0) for cycle in range(5)] == [0, 1, 2, 0, 1]
    assert [rolling_start(8, 6, cycle, 2) for cycle in range(5)] == [2, 0, 1, 2, 0]
    assert visits(8, 2, [rolling_start(8, 2, cycle, 0) for cycle in range(7)]) == [1, 2, 2, 2, 2, 2, 2, 1]


def test_balanced_is_more_even_than_rolling() -> None:
    """One device with 2 of 8 blocks, 63 cycles: full turns of rolling (7)."""
    spread = {}
    for schedule in SCHEDULES:
        coverage = [0] * 8
        for cycle in range(63):
            start = window_start(schedule, coverage, 2, cycle, 0)  # type: ignore[arg-type]
            for block in range(start, start + 2):
                coverage[block] += 1
        spread[schedule] = max(coverage) - min(coverage)
    assert spread == {"rolling": 9, "balanced": 2}


def test_balanced_takes_the_least_trained_place_and_ties_in_rolling_order() -> None:
    assert balanced_start([5, 5, 1, 1, 5, 5], blocks=2, cycle=0, offset=0) == 2
    assert [balanced_start([0] * 6, blocks=2, cycle=0, offset=o) for o in range(6)] == [0, 1, 2, 3, 4, 0]


@given(st.integers(1, 30), st.integers(1, 30))
def test_offsets_of_a_tier_are_distinct_as_long_as_there_are_places(size: int, places: int) -> None:
    offsets = [tier_offset(rank, size, places) for rank in range(size)]
    assert len(set(offsets)) == min(size, places)
    assert all(0 <= offset < places for offset in offsets)
    if 1 < size <= places:
        assert (offsets[0], offsets[-1]) == (0, places - 1) if size < places else offsets == list(range(places))


def test_offsets_of_a_fleet_rank_each_device_inside_its_tier() -> None:
    assert tier_offsets(8, [2, 6, 2, 6, 6, 2]) == (0, 0, 3, 1, 2, 6)
    assert positions(8, 2) == 7


def test_exits_at_the_depths_of_the_tiers() -> None:
    assert exit_depths(2, 6, [2, 6]) == (4, 8)
    assert exit_depths(1, 2, [2, 6]) == (3,)
    assert exit_depths(0, 3, []) == (3,)


def test_an_unknown_schedule_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown window schedule 'random'; known: rolling, balanced"):
        window_start("random", [0] * 8, 2, 0, 0)  # type: ignore[arg-type]


@given(windows(), st.integers(0, 30))
def test_windows_stay_above_the_first_block_where_they_fit(window: tuple[int, int, int, int], first: int) -> None:
    depth, blocks, cycle, offset = window
    for schedule in get_args(Schedule):
        start = window_start(schedule, [0] * depth, blocks, cycle, offset, first)
        assert min(first, depth - blocks) <= start <= depth - blocks


def test_all_devices_are_at_the_same_blocks_in_a_round() -> None:
    for round in range(6):
        tops = {together_start(6, blocks, round) + blocks for blocks in (1, 2)}
        assert tops == {6 - round} or round == 5  # the larger one is held at the bottom


def test_a_window_that_does_not_move() -> None:
    assert {window_start("top", [0] * 8, 2, cycle, 3) for cycle in range(9)} == {6}
