"""Averaging scaled submodels: every scalar over the updates that hold it.

Segments are of no use here, since a device holds a part of every head; so sums and weights are kept per scalar.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch

from cos2p.aggregation.merge import Contribution, Merge, Place
from cos2p.aggregation.weights import even_weight
from cos2p.methods.heterofl.cut import ScaledCut, places, scaled_slices
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights


class ScaledMerge(Merge):
    """w ← w − Σ p_n Δ_n / Σ p_n over the holders of each scalar; what nobody holds stays bitwise.

    `holders`, of each head and unit: how many updates of this round held its least held scalar.
    """

    groups: ClassVar[tuple[str, ...]] = ("sum", "weight", "count", "holders")
    sum: Weights
    weight: Weights
    count: Weights

    def __init__(self, config: ModelConfig, weights: Literal["uniform", "samples"] = "uniform") -> None:
        super().__init__(config)
        self.weights = weights

    def places(self, item: Contribution) -> Mapping[str, Place]:
        cuts = scaled_slices(self.config, ScaledCut.model_validate(item.settings["thin"]))
        return {name: places(cuts[name]) for name in item.delta if name in cuts}

    def weigh(self, item: Contribution, current: Weights) -> dict[str, float] | None:
        return even_weight(1.0 if self.weights == "uniform" else float(item.samples))

    def add(self, item: Contribution, current: Weights) -> dict[str, float]:
        weight = 1.0 if self.weights == "uniform" else float(item.samples)
        part = ScaledCut.model_validate(item.settings["thin"])
        for name, cuts in scaled_slices(self.config, part).items():
            if name not in self.sum:
                for group in (self.sum, self.weight, self.count):
                    group[name] = torch.zeros_like(current[name])
            at = places(cuts)
            self.sum[name][at] += weight * item.delta[name]
            self.weight[name][at] += weight
            self.count[name][at] += 1
        self._note_holders()
        return even_weight(weight)

    def _note_holders(self) -> None:
        heads = (self.config.groups, -1)
        for block in range(self.config.depth):
            rows = self.count[f"blocks.{block}.q.weight"].amin(1)
            self.holders[f"heads.{block}"] = rows.view(heads).amin(1)
            self.holders[f"units.{block}"] = self.count[f"blocks.{block}.fc1.weight"].amin(1)

    def apply(self, current: Weights) -> Weights:
        updated = dict(current)
        for name, total in self.sum.items():
            weight = self.weight[name]
            updated[name] = current[name] - total / torch.where(weight > 0, weight, 1.0)
        self.clear("sum", "weight", "count")
        return updated
