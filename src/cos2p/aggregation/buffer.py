"""FedBuff's server (Nguyen et al. 2022, Algorithm 1): updates gather in a buffer and are applied together.

    B ← B + s(τ)·Δ        s(τ) = (1 + τ)^(−a)        after K arrivals:  w ← w − η_g · B / K

Δ is the difference to the model the device *received*. The sum is divided by the number of updates, not by Σs: stale
updates are damped, fresh ones are not raised in exchange. Where an update is a submodel's, each scalar is divided by
the updates that hold it, which for full models is K; scalars nobody holds stay bitwise.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from cos2p.aggregation.counting import add_at_segments, held_segments
from cos2p.aggregation.merge import Contribution
from cos2p.aggregation.mixing import Damping
from cos2p.aggregation.weights import even_weight
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.submodel.segments import SegmentValues, expand, segment_key
from cos2p.submodel.slicing import window_slices


class BufferMerge:
    """When it is applied is the trigger's business; a part-filled buffer at the end of a run is a smaller K."""

    def __init__(self, config: ModelConfig, server_lr: float, damping: Damping) -> None:
        self.config, self.server_lr, self.damping = config, server_lr, damping
        self._sum: Weights = {}
        self.holders: SegmentValues = {}

    def add(self, item: Contribution, current: Weights) -> dict[str, float]:
        factor = self.damping(item.staleness)
        for name, cut in window_slices(self.config, item.spec).items():
            if name not in self._sum:
                self._sum[name] = torch.zeros_like(current[name])
            if cut is None:
                self._sum[name].add_(item.delta[name], alpha=factor)
            else:
                self._sum[name].index_add_(*cut, item.delta[name], alpha=factor)
        add_at_segments(self.holders, held_segments(self.config, item.spec, item.delta), self.config, item.spec)
        return even_weight(factor)

    def apply(self, current: Weights) -> Weights:
        updated = dict(current)
        for name, total in self._sum.items():
            key = segment_key(self.config, name)
            inverse = expand({key: 1 / self.holders[key].clamp_min(1)}, name, self.config)
            updated[name] = torch.addcmul(current[name], total, inverse, value=-self.server_lr)
        self._sum, self.holders = {}, {}
        return updated

    def state(self) -> dict[str, Weights]:
        return {"sum": self._sum, "holders": self.holders}

    def load_state(self, state: Mapping[str, Weights]) -> None:
        self._sum, self.holders = (
            {name: tensor.clone() for name, tensor in state.get(group, {}).items()} for group in ("sum", "holders")
        )
