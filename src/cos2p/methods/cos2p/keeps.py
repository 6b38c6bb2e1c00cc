"""Masks as sets of heads and units: which are the largest, which may be chosen from, how far two agree."""

from __future__ import annotations

import torch

from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.models.spec import BlockKeep, BlockSize
from cos2p.submodel.rates import segment_costs
from cos2p.submodel.segments import segment_norms


def agreement(config: ModelConfig, before: BlockKeep, now: BlockKeep) -> float:
    """The share of a block's mask, by parameters, that was in the one before; of an empty mask all."""
    head, unit = segment_costs(config)
    same = head * len({*before.heads} & {*now.heads}) + unit * len({*before.units} & {*now.units})
    whole = head * len(now.heads) + unit * len(now.units)
    return same / whole if whole else 1.0


def within(keep: BlockKeep, quota: BlockSize) -> bool:
    return len(keep.heads) <= quota.heads and len(keep.units) <= quota.units


def widen(kept: tuple[int, ...], segments: int, count: int, rng: torch.Generator) -> tuple[int, ...]:
    """`count` segments: those kept, and others drawn at random."""
    if count >= segments:
        return tuple(range(segments))
    own = set(kept)
    others = [s for s in torch.randperm(segments, generator=rng).tolist() if s not in own]
    return tuple(sorted([*kept, *others[: max(0, count - len(kept))]]))


def largest_keep(config: ModelConfig, weights: Weights, block: int, size: BlockSize) -> BlockKeep:
    """The segments of a block with the largest mean magnitude; of equals the first."""
    start = f"blocks.{block}."
    norms = segment_norms({n: w for n, w in weights.items() if n.startswith(start)}, config)
    heads, units = (norms[f"{kind}.{block}"].argsort(descending=True, stable=True) for kind in ("heads", "units"))
    return BlockKeep.of(heads[: size.heads].tolist(), units[: size.units].tolist())
