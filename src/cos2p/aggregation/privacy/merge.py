"""The server's half: sums of clipped updates, noise, and a denominator that nobody's data or presence can move."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch

from cos2p.aggregation.merge import Contribution, SegmentMerge
from cos2p.aggregation.privacy.clipping import Draw, clipped
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.submodel.segments import expand, segment_key


class PrivateMerge(SegmentMerge):
    """w ← w − (Σ_n s(τ_n) clip(Δ_n) + noise) / D on every segment that somebody held in the round.

    An update moves the sum by at most C, whatever is in it: its weight is at most 1 and does not depend on it.
    """

    groups: ClassVar[tuple[str, ...]] = (*SegmentMerge.groups, "rounds")
    rounds: Weights
    """One number: rounds closed so far, so that each draws noise of its own."""

    def __init__(
        self,
        config: ModelConfig,
        like: SegmentMerge,
        denominator: float,
        draw: Draw,
        clip: float,
        deviation: float,
        *,
        clip_here: bool,
    ) -> None:
        """`like` is the method's own merge, for what stale updates are worth. `deviation` is of the noise on each
        scalar of a sum; 0: none, the devices added theirs and cannot be clipped any more."""
        super().__init__(config, "uniform", like.step_exponent)
        self.denominator, self.draw, self.clip, self.deviation = denominator, draw, clip, deviation
        self.clip_here = clip_here

    def add(self, item: Contribution, current: Weights) -> dict[str, float]:
        delta = clipped(item.delta, self.clip) if self.clip_here else item.delta
        return super().add(replace(item, delta=delta), current)

    def apply(self, current: Weights) -> Weights:
        updated, closed = dict(current), int(self.rounds.get("closed", torch.zeros(())))
        rng = self.draw("private round", closed)
        for name, total in sorted(self.sum.items()):
            if self.deviation:
                total = total + self.deviation * torch.randn(total.shape, generator=rng)
            key = segment_key(self.config, name)
            held = (self.holders[key] > 0).to(total.dtype) / self.denominator
            updated[name] = current[name] - total * expand({key: held}, name, self.config)
        self.rounds = {"closed": torch.tensor(float(closed + 1))}
        self.clear("sum", "weight")
        return updated
