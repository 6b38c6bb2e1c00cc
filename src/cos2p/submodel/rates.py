"""From a keep rate R_n to a depth, a width and counts of segments. The cost never exceeds R_n.

R_n is the share of the prunable parameters (heads and units) that a device trains. It is divided into
R_width · R_depth; a submodel has K = ⌊L·R_depth⌋ blocks (at least one), and what the floor lost or the "at least
one" took is given to, or taken from, the width: R_width = min(1, R_n·L/K).

The rolling window: which blocks a device trains in its r-th cycle.

A device's own cycle counter drives its window, not the server's round: a straggler whose period happened to equal
the number of positions would otherwise see one window for ever. Devices of one tier (same number of blocks) start
at different positions, so that every round covers every block.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from cos2p.errors import ConfigError
from cos2p.models.config import ModelConfig

_EPSILON = 1e-9  # √.5625 · 8 must floor to 6, not 5


@dataclass(frozen=True)
class SubmodelSize:
    """How deep and how wide a submodel is."""

    blocks: int
    """K: trainable blocks."""
    width: float
    """R_width after re-balancing."""
    heads: int
    """Attention segments over the whole window."""
    units: int
    """MLP units over the whole window."""


def check_rate(rate: float) -> float:
    if not 0.0 < rate <= 1.0:
        raise ConfigError(f"rate {rate} is outside (0, 1]; it is the share of the model that is kept")
    return rate


def cut(config: ModelConfig, rate: float, ratio: float = 1.0) -> SubmodelSize:
    """Divide `rate` so that R_width / R_depth = `ratio`: 1 is the paper's balanced default (equal square roots).

    `ratio=0` cuts the width only (full depth), `ratio=inf` cuts the depth only (full width), as far as one block
    allows. Where one of the two would exceed 1, the other takes up the rest.

    >>> from cos2p import model_config
    >>> cut(model_config("vit-tiny"), 0.25)
    SubmodelSize(blocks=4, width=0.5, heads=16, units=4096)
    >>> cut(model_config("vit-tiny"), 0.0625, ratio=0.0)
    SubmodelSize(blocks=8, width=0.0625, heads=4, units=1024)
    """
    check_rate(rate)
    if ratio < 0 or math.isnan(ratio):
        raise ConfigError(f"width/depth ratio {ratio} must be ≥ 0 (1 is balanced, 0 only width, inf only depth)")
    depth_rate = 1.0 if ratio == 0 else min(1.0, max(rate, math.sqrt(rate / ratio)))
    blocks = max(1, math.floor(config.depth * depth_rate + _EPSILON))
    width = min(1.0, rate * config.depth / blocks)
    return SubmodelSize(
        blocks=blocks,
        width=width,
        heads=math.floor(width * blocks * config.groups + _EPSILON),
        units=math.floor(width * blocks * config.mlp + _EPSILON),
    )


def spread(total: int, blocks: int, rotation: int = 0) -> list[int]:
    """Deal `total` segments evenly over `blocks`; the remainder goes to blocks in an order turned by `rotation`.

    >>> spread(4, 8, rotation=6)
    [1, 1, 0, 0, 0, 0, 1, 1]
    """
    base, extra = divmod(total, blocks)
    return [base + ((i - rotation) % blocks < extra) for i in range(blocks)]


def segment_costs(config: ModelConfig) -> tuple[int, int]:
    """Scalars of one attention segment and of one MLP unit."""
    per_group = config.head_dim * (2 * config.queries_per_group + 2)  # q and o, k and v
    head = per_group * config.dim
    unit = (3 if config.gated else 2) * config.dim
    if config.attention_bias != "none":
        head += config.head_dim * (config.queries_per_group + 2)
    if config.biased:
        unit += 1
    return head, unit


def prunable(config: ModelConfig) -> int:
    """P_s: scalars of all segments of all blocks."""
    head, unit = segment_costs(config)
    return config.depth * (config.groups * head + config.mlp * unit)


Schedule = Literal["rolling", "balanced", "together", "top", "growing"]
"""How a window moves: see the functions below; `top` stays at the top."""


def positions(depth: int, blocks: int) -> int:
    """How many places a window of `blocks` blocks has in a model of `depth` blocks."""
    return depth - blocks + 1


def tier_offset(rank: int, tier_size: int, places: int) -> int:
    """Where the `rank`-th of `tier_size` devices begins: spread from the first to the last of `places` steps.

    >>> [tier_offset(r, 4, 7) for r in range(4)], [tier_offset(r, 7, 3) for r in range(7)]
    ([0, 2, 4, 6], [0, 1, 2, 0, 1, 2, 0])
    """
    if 1 < tier_size < places:
        return round(rank * (places - 1) / (tier_size - 1))
    return rank % places


def tier_offsets(depth: int, blocks: Sequence[int], first: int = 0) -> tuple[int, ...]:
    """Every device's offset, from every device's number of blocks; a tier is the devices with the same number.

    `first` as in `window_start`.

    Under `rolling`, no offsets can cover every block in every round if each tier has fewer devices than its window
    has positions: the outermost block is trained at one position only, and two tiers with coprime periods both miss
    it sooner or later (vit-nano, 4 devices at 1/16 and 4 at 1/4); `balanced` does.

    >>> tier_offsets(8, [2, 6, 6, 6])
    (0, 0, 1, 2)
    """
    sizes, seen = Counter(blocks), Counter[int]()
    offsets = []
    for count in blocks:
        above = depth - min(first, depth - count)
        offsets.append(tier_offset(seen[count], sizes[count], positions(above, count)))
        seen[count] += 1
    return tuple(offsets)


def rolling_start(depth: int, blocks: int, cycle: int, offset: int) -> int:
    """The paper's window: one block further each cycle, from the bottom again after the top."""
    return (cycle + offset) % positions(depth, blocks)


def balanced_start(coverage: Sequence[int], blocks: int, cycle: int, offset: int) -> int:
    """The position whose blocks were dispatched least so far; ties in rolling order, so that devices differ.

    `coverage[i]` counts the tasks that had block i in their window.
    """
    places = positions(len(coverage), blocks)
    first = (cycle + offset) % places
    order = [(first + i) % places for i in range(places)]
    return min(order, key=lambda start: sum(coverage[start : start + blocks]))


def together_start(depth: int, blocks: int, round: int) -> int:
    """All devices at the same blocks in a round, from the top down: every block that trains has many holders.

    Windows of unequal sizes end at the same block, as long as the larger one fits below it.

    >>> [together_start(6, 1, r) for r in range(7)], [together_start(6, 3, r) for r in range(7)]
    ([5, 4, 3, 2, 1, 0, 5], [3, 2, 1, 0, 0, 0, 3])
    """
    return max(0, depth - round % depth - blocks)


STAY = 0.5
"""A growing model's share of the run before windows begin to rise."""


def growing_top(depth: int, reach: int, progress: float, stay: float = STAY) -> int:
    """How many blocks the model has grown to, at which all windows end: `reach` for the first `stay` of the run, then
    one more at equal intervals.

    >>> [growing_top(8, 2, progress) for progress in (0.0, 0.49, 0.5, 0.75, 0.99, 1.0)]
    [2, 2, 3, 6, 8, 8]
    """
    if progress < stay:
        return reach
    return min(depth, reach + 1 + int((progress - stay) / (1 - stay) * (depth - reach)))


def window_start(
    schedule: Schedule, coverage: Sequence[int], blocks: int, cycle: int, offset: int, first: int = 0
) -> int:
    """First trainable block under any schedule; `coverage` has one entry for each block of the model.

    Blocks below `first` are left alone, unless the window is too large to stand above it. `together` counts rounds, the
    same for all devices: give them as `cycle`; to `growing` the top that windows end at.
    """
    first = min(first, len(coverage) - blocks)
    return first + _start_above(schedule, coverage[first:], blocks, cycle, offset)


def _start_above(schedule: Schedule, coverage: Sequence[int], blocks: int, cycle: int, offset: int) -> int:
    depth = len(coverage)
    if schedule == "rolling":
        return rolling_start(depth, blocks, cycle, offset)
    if schedule == "balanced":
        return balanced_start(coverage, blocks, cycle, offset)
    if schedule == "together":
        return together_start(depth, blocks, cycle)
    if schedule == "top":
        return depth - blocks
    if schedule == "growing":
        return max(0, min(cycle, depth) - blocks)
    raise ConfigError(f"unknown window schedule {schedule!r}; known: {', '.join(get_args(Schedule))}")


def exit_depths(start: int, blocks: int, tier_blocks: Sequence[int]) -> tuple[int, ...]:
    """Exits at frozen + K_i for every tier's K_i ≤ K_n; the device's own top is always among them.

    >>> exit_depths(2, 6, [2, 6])
    (4, 8)
    """
    return tuple(sorted({start + k for k in tier_blocks if k <= blocks} | {start + blocks}))
