"""Does every round train every block and the last exit (N* ≥ 1)?"""

from __future__ import annotations

import pytest

from cos2p import ModelConfig, model_config
from cos2p.errors import ConfigError
from cos2p.submodel.coverage import Coverage, coverage_table
from cos2p.submodel.rates import Schedule

ROUNDS = 360
SCHEDULES: tuple[Schedule, ...] = ("rolling", "balanced")
HARD_MIX = (model_config("vit-nano"), [1 / 16] * 4 + [1 / 4] * 4)


FLEETS = {
    "E1": ("vit-tiny", [1 / 16] + 7 * [9 / 16]),
    "E2": ("vit-base", 6 * [1 / 16] + 10 * [9 / 16]),
    "E3": ("vit-base-ext", [1 / 64] + 2 * [1 / 16] + 3 * [1 / 4] + 10 * [9 / 16]),
}
"""The paper's fleets. Its .0156 is 1/64: the rounded number would floor √R·16 blocks to one instead of two."""


def paper_fleet(name: str) -> tuple[ModelConfig, list[float]]:
    size, rates = FLEETS[name]
    return model_config(size), rates


def covered(coverage: Coverage) -> bool:
    return coverage.minimum >= 1 and min(coverage.top_exit) >= 1


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("fleet", FLEETS)
def test_every_round_covers_every_block_and_the_last_exit_in_the_paper_fleets(fleet: str, schedule: Schedule) -> None:
    coverage = coverage_table(*paper_fleet(fleet), schedule=schedule, rounds=ROUNDS)
    assert covered(coverage)
    assert coverage.minimum >= 2
    assert coverage.uncovered == 0


@pytest.mark.parametrize("fleet", FLEETS)
def test_the_round_number_alone_leaves_blocks_uncovered(fleet: str) -> None:
    config, rates = paper_fleet(fleet)
    coverage = coverage_table(config, rates, rounds=ROUNDS, offsets=[0] * len(rates))
    assert coverage.minimum == 0
    assert coverage.uncovered > ROUNDS // 2
    assert min(coverage.top_exit) == 0


def test_the_hard_mix_is_covered_by_balanced_windows() -> None:
    assert covered(coverage_table(*HARD_MIX, schedule="balanced", rounds=ROUNDS))


def test_no_offsets_whatever_let_plain_rolling_cover_the_hard_mix() -> None:
    """4 devices on 5 positions and 4 on 7: block 0 is trained at position 0 only, and since 5 and 7 are coprime a
    round comes in which neither tier has anybody there. Tried: every choice of distinct offsets up to rotation."""
    config, rates = HARD_MIX
    smallest_tier_choices = [(0, a, b, c) for a in range(1, 7) for b in range(a + 1, 7) for c in range(b + 1, 7)]
    for small in smallest_tier_choices:
        assert coverage_table(config, rates, rounds=35, offsets=(*small, 0, 1, 2, 3)).minimum == 0


def test_by_hand() -> None:
    """Two blocks: one device trains both, one rolls over them."""
    config = model_config("vit-nano", depth=2)
    coverage = coverage_table(config, [1.0, 0.25], rounds=3)
    assert coverage.blocks == ((2, 1), (1, 2), (2, 1))
    assert coverage.top_exit == (1, 2, 1)
    assert (coverage.minimum, coverage.uncovered) == (1, 0)
    assert coverage.table().splitlines() == [
        "  block       0     1   exit 2",
        "  fewest      1     1        1",
        "  mean      1.7   1.3      1.3",
        "  most        2     2        2",
    ]


def test_a_single_device_cannot_cover_alone() -> None:
    coverage = coverage_table(model_config("vit-nano"), [1 / 16], rounds=7)
    assert coverage.minimum == 0
    assert coverage.uncovered == 7
    assert coverage.top_exit == (0, 0, 0, 0, 0, 0, 1)


def test_the_ratio_changes_the_windows() -> None:
    only_width = coverage_table(model_config("vit-nano"), [1 / 16], ratio=0.0, rounds=3)
    assert only_width.blocks == ((1,) * 8,) * 3


def test_bad_input_is_named() -> None:
    with pytest.raises(ConfigError, match="at least one device and one round, got 0 and 100"):
        coverage_table(model_config("vit-nano"), [])
    with pytest.raises(ConfigError, match="1 offsets for 2 devices; give one for each"):
        coverage_table(model_config("vit-nano"), [0.5, 0.5], offsets=[0])


def test_a_growing_model_is_trained_from_the_bottom_to_its_top() -> None:
    """Two thirds of these devices have half of a block, one third two blocks; all of them train the newest one."""
    found = coverage_table(model_config("vit-nano"), [1 / 16, 1 / 16, 1 / 4], 4.0, "growing", rounds=40)
    first, last = found.blocks[0], found.blocks[-1]
    assert first == (1, 3, 0, 0, 0, 0, 0, 0)
    assert last == (0, 0, 0, 0, 0, 0, 1, 3)
    newest = [max(block for block, devices in enumerate(row) if devices) for row in found.blocks]
    assert newest == sorted(newest)
    assert newest.count(1) == 20
