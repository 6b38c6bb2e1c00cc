"""From a keep rate R_n to a depth, a width and counts of segments. The cost never exceeds R_n.

R_n is the share of the prunable parameters (heads and units) that a device trains. It is divided into
R_width · R_depth; a submodel has K = ⌊L·R_depth⌋ blocks (at least one), and what the floor lost or the "at least
one" took is given to, or taken from, the width: R_width = min(1, R_n·L/K).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cos2p.errors import ConfigError
from cos2p.models.config import ModelConfig

LADDER = (1.0, 0.75, 0.5625, 0.5, 0.375, 0.25, 0.1875, 0.125, 0.0625, 0.03125, 0.015625)
"""Rates to choose from: few, so that devices fall into tiers and share exits."""

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
