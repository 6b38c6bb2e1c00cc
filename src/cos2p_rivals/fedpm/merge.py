"""FedPM on the server: its Bayesian aggregation of masks."""

from __future__ import annotations

from dataclasses import replace

import torch

from cos2p import ModelConfig, extract
from cos2p.methods import Contribution, Weights
from cos2p_rivals.fedpm.network import masked_shapes, segment_shapes, segment_table, unpack_bits
from cos2p_rivals.side_tensors import SideMerge, take_side


class MaskMerge(SideMerge):
    """θ ← (κ·θ + Σ M_n) / (κ + n) over the n holders of each segment, κ the prior; dense tensors are averaged."""

    def __init__(self, config: ModelConfig, prior: float, elements: bool) -> None:
        super().__init__(config, {} if elements else segment_table(config), "uniform")
        self.prior, self.elements = prior, elements

    def decode(self, item: Contribution, current: Weights) -> Contribution:
        # Towards the mask from where θ stands now, so that even a late bit is a bit and no leap.
        if self.elements:
            masks = unpack_bits(item.extras["mask"], masked_shapes(self.config, item.spec))
            now = extract(current, self.config, item.spec, masks)
            frozen: Weights = {}
        else:
            masks = unpack_bits(item.extras["mask"], segment_shapes(self.config, item.spec))
            now = take_side(current, self.table, self.config, item.spec)
            frozen = {n: torch.zeros(s) for n, s in masked_shapes(self.config, item.spec).items()}
        steps = {name: now[name] - mask for name, mask in masks.items()}
        return replace(item, delta={**item.delta, **frozen, **steps})

    def apply(self, current: Weights) -> Weights:
        weights = self.weight if self.elements else self.side_weight
        for key, weight in weights.items():
            if not self.elements or key.startswith(("heads.", "units.")):
                weights[key] = torch.where(weight > 0, weight + self.prior, weight)
        return super().apply(current)
