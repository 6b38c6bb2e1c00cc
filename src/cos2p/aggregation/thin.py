"""Averaging thin submodels: every scalar over the updates that hold it.

Segments are of no use here, since a device holds a part of every head; so sums and weights are kept per scalar.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch

from cos2p.aggregation.merge import Contribution
from cos2p.aggregation.weights import even_weight
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.submodel.segments import SegmentValues
from cos2p.submodel.thin import ScaledCut, places, thin_slices


class ThinMerge:
    """w ← w − Σ p_n Δ_n / Σ p_n over the holders of each scalar; what nobody holds stays bitwise."""

    def __init__(self, config: ModelConfig, weights: Literal["uniform", "samples"] = "uniform") -> None:
        self.config, self.weights = config, weights
        self._sum: Weights = {}
        self._weight: Weights = {}
        self._count: Weights = {}
        self.holders: SegmentValues = {}
        """Of each head and unit: how many updates of this round held its least held scalar."""

    def add(self, item: Contribution, current: Weights) -> dict[str, float]:
        weight = 1.0 if self.weights == "uniform" else float(item.samples)
        part = ScaledCut.model_validate(item.settings["thin"])
        for name, cuts in thin_slices(self.config, part).items():
            if name not in self._sum:
                for group in (self._sum, self._weight, self._count):
                    group[name] = torch.zeros_like(current[name])
            at = places(cuts)
            self._sum[name][at] += weight * item.delta[name]
            self._weight[name][at] += weight
            self._count[name][at] += 1
        self._note_holders()
        return even_weight(weight)

    def _note_holders(self) -> None:
        heads = (self.config.heads, -1)
        for block in range(self.config.depth):
            rows = self._count[f"blocks.{block}.q.weight"].amin(1)
            self.holders[f"heads.{block}"] = rows.view(heads).amin(1)
            self.holders[f"units.{block}"] = self._count[f"blocks.{block}.fc1.weight"].amin(1)

    def apply(self, current: Weights) -> Weights:
        updated = dict(current)
        for name, total in self._sum.items():
            weight = self._weight[name]
            updated[name] = current[name] - total / torch.where(weight > 0, weight, 1.0)
        self._sum, self._weight, self._count, self.holders = {}, {}, {}, {}
        return updated

    def state(self) -> dict[str, Weights]:
        return {"sum": self._sum, "weight": self._weight, "count": self._count, "holders": self.holders}

    def load_state(self, state: Mapping[str, Weights]) -> None:
        self._sum, self._weight, self._count, self.holders = (
            {name: tensor.clone() for name, tensor in state.get(group, {}).items()}
            for group in ("sum", "weight", "count", "holders")
        )
