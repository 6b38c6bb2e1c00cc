"""Merging tensors beside the model: each entry is averaged over the updates that hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch

from cos2p.aggregation.merge import Contribution, SegmentMerge
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.submodel.beside import Table


class BesideMerge(SegmentMerge):
    """Selective aggregation of a model and of the tensors beside it; what nobody holds stays bitwise."""

    def __init__(self, config: ModelConfig, table: Table, rule: Literal["uniform", "samples"] = "uniform") -> None:
        super().__init__(config, rule)
        self.table = table
        self._beside: Weights = {}
        self._beside_weight: Weights = {}

    def add(self, item: Contribution, current: Weights) -> dict[str, float]:
        weight = float(item.samples) if self.rule == "samples" else 1.0
        for name in item.delta.keys() & self.table.keys():
            entry, delta = self.table[name], item.delta[name]
            total = self._beside.setdefault(name, torch.zeros(entry.shape))
            count = self._beside_weight.setdefault(name, torch.zeros(entry.shape[:1]))
            rows = entry.rows(self.config, item.spec)
            if rows is None:
                total.add_(delta, alpha=weight)
                count.add_(weight)
            else:
                total.index_add_(0, rows, delta, alpha=weight)
                count.index_add_(0, rows, torch.full(rows.shape, weight))
        return super().add(replace(item, delta={n: d for n, d in item.delta.items() if n not in self.table}), current)

    def apply(self, current: Weights) -> Weights:
        updated = super().apply(current)
        for name, total in self._beside.items():
            count = self._beside_weight[name]
            held = count > 0
            updated[name] = current[name].clone()
            share = count[held].view(-1, *(1,) * (total.ndim - 1))
            updated[name][held] -= total[held] / share
        self._beside, self._beside_weight = {}, {}
        return updated

    def state(self) -> dict[str, Weights]:
        return {**super().state(), "beside": self._beside, "beside_weight": self._beside_weight}

    def load_state(self, state: Mapping[str, Weights]) -> None:
        super().load_state(state)
        self._beside, self._beside_weight = (
            {name: tensor.clone() for name, tensor in state.get(group, {}).items()}
            for group in ("beside", "beside_weight")
        )
