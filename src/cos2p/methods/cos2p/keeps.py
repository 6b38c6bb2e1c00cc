"""Masks as sets of heads and units: what a quota allows, and what may be chosen from."""

from __future__ import annotations

import torch

from cos2p.models.spec import BlockKeep, BlockSize


def within(keep: BlockKeep, quota: BlockSize) -> bool:
    return len(keep.heads) <= quota.heads and len(keep.units) <= quota.units


def widen(kept: tuple[int, ...], segments: int, count: int, rng: torch.Generator) -> tuple[int, ...]:
    """`count` segments: those kept, and others drawn at random."""
    if count >= segments:
        return tuple(range(segments))
    own = set(kept)
    others = [s for s in torch.randperm(segments, generator=rng).tolist() if s not in own]
    return tuple(sorted([*kept, *others[: max(0, count - len(kept))]]))
