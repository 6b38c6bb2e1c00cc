from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cos2p import ModelConfig, SubmodelSpec
from cos2p.methods import build_method
from cos2p.methods.fedrolex import FedRolex, window_starts
from tests.methods.fleet import Fleet, digits_house, with_rates
from tests.tiny import VIT, context, same

SQUARE = VIT.with_(heads=4, depth=4, mlp=16)
"""As many blocks as heads: the case in which turning both at one pace would leave heads out."""


def fedrolex(config: ModelConfig, rates: tuple[float, ...], **settings: Any) -> FedRolex:
    method = build_method({"name": "fedrolex", **settings}, context(config, rates=rates))
    assert isinstance(method, FedRolex)
    return method


def visits(method: FedRolex, client: str, rounds: int) -> tuple[torch.Tensor, torch.Tensor]:
    config = method.context.config
    heads, units = torch.zeros(config.depth, config.groups), torch.zeros(config.depth, config.mlp)
    for q in range(rounds):
        for block, keep in enumerate(method.spec(client, q).window):
            heads[block, list(keep.heads)] += 1
            units[block, list(keep.units)] += 1
    return heads, units


def test_official_step_shows_every_unit_exactly_k_times_in_as_many_rounds_as_units() -> None:
    method = fedrolex(SQUARE, (0.25,), step="official")  # 4 of 16 units, 1 of 4 heads in each block
    heads, units = visits(method, "pi-0", 16)
    assert units.unique().tolist() == [4.0]
    assert heads.unique().tolist() == [4.0]


def test_official_windows_move_by_one() -> None:
    method = fedrolex(SQUARE, (0.25,), step="official")
    assert [method.spec("pi-0", q).window[0].units for q in (0, 1, 15)] == [(0, 1, 2, 3), (1, 2, 3, 4), (0, 1, 2, 15)]


def test_by_default_the_window_moves_by_itself() -> None:
    method = fedrolex(SQUARE, (0.25,))
    assert [method.spec("pi-0", q).window[2].units for q in (0, 1, 4)] == [(0, 1, 2, 3), (4, 5, 6, 7), (0, 1, 2, 3)]


@given(st.floats(0.04, 1.0), st.integers(0, 60))
def test_the_smallest_device_sees_all_segments_equally_often_at_any_time(rate: float, rounds: int) -> None:
    method = fedrolex(SQUARE, (rate, 1.0))
    heads, units = visits(method, "pi-0", rounds)
    for block in range(SQUARE.depth):
        assert units[block].max() - units[block].min() <= 1
        assert heads[block].max() - heads[block].min() <= 1


def test_fewer_heads_than_blocks_still_reach_every_head() -> None:
    """2 heads for 4 blocks of 4 heads, turning in step, would meet the same two heads of a block for ever."""
    heads, _ = visits(fedrolex(SQUARE, (0.125,)), "pi-0", 8)
    assert heads.unique().tolist() == [1.0]


def test_larger_devices_see_all_segments_equally_often_over_a_turn() -> None:
    method = fedrolex(SQUARE, (0.25, 0.5))
    heads, units = visits(method, "pi-1", 4)
    assert units.unique().tolist() == [2.0]
    assert heads.unique().tolist() == [2.0]


@given(st.floats(0.03, 1.0), st.floats(0.03, 1.0), st.integers(0, 50), st.sampled_from(["window", "official"]))
def test_small_windows_lie_inside_large_ones(a: float, b: float, q: int, step: str) -> None:
    small, large = sorted((a, b))
    method = fedrolex(SQUARE, (small, large), step=step)
    for inner, outer in zip(method.spec("pi-0", q).window, method.spec("pi-1", q).window, strict=True):
        assert set(inner.heads) <= set(outer.heads)
        assert set(inner.units) <= set(outer.units)


def test_blocks_without_heads_take_turns() -> None:
    method = fedrolex(SQUARE, (0.125,))
    empty = [{b for b, keep in enumerate(method.spec("pi-0", q).window) if not keep.heads} for q in range(4)]
    assert empty == [{2, 3}, {0, 3}, {0, 1}, {1, 2}]


def test_window_starts_count_what_was_dealt() -> None:
    assert window_starts(6, 4, 0) == [0, 0, 0, 0]
    assert window_starts(6, 4, 1) == [2, 2, 1, 1]
    assert window_starts(6, 4, 4) == [6, 6, 6, 6]
    assert window_starts(2, 4, 1, "official") == [1, 1, 0, 0]


@pytest.mark.parametrize("step", ["window", "official"])
def test_with_the_whole_model_it_is_fedavg(step: str) -> None:
    everybody = with_rates(digits_house(rounds=2), 1.0, 1.0)
    fleet = Fleet(everybody, {"name": "fedrolex", "step": step}).run()
    assert all(order.spec == SubmodelSpec.full(everybody.config) for order in fleet.orders)
    assert same(fleet.server.weights, Fleet(everybody, {"name": "fedavg"}).run().server.weights)


def test_all_devices_share_the_round_of_their_version() -> None:
    fleet = Fleet(digits_house(rounds=2), {"name": "fedrolex"}).run()
    method = fleet.method
    assert isinstance(method, FedRolex)
    assert all(order.spec == method.spec(order.client, order.version) for order in fleet.orders)
    assert {order.version for order in fleet.orders} == {0, 1}
