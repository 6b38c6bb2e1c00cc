"""Tensors next to the model (policies, norms, step sizes, scores), cut along with the heads and units they serve.

A method that needs some adds them to the model's weights under names of its own (`adavit.3.heads.bias`). What a device
gets and sends back of them follows from its submodel, as for the model's own tensors; the server averages each entry
over the updates that hold it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from cos2p import ModelConfig, SubmodelSpec
from cos2p.methods import Contribution, SegmentMerge, Weights
from cos2p_rivals.segments import held


@dataclass(frozen=True)
class SideTensor:
    """Full shape of a tensor, and what the entries of its first axis belong to."""

    shape: tuple[int, ...]
    per: Literal["whole", "head", "query", "unit"] = "whole"
    """`head`: one entry for each attention segment; `query`: one for each row of q; `unit`: one for each MLP unit."""
    block: int = 0

    def rows(self, config: ModelConfig, spec: SubmodelSpec) -> Tensor | None:
        """The entries of the first axis that a submodel holds; None: all."""
        if self.per == "whole":
            return None
        kept = held(spec, f"{'units' if self.per == 'unit' else 'heads'}.{self.block}")
        if self.per != "query":
            return kept
        width = config.queries_per_group * config.head_dim
        return (kept[:, None] * width + torch.arange(width)).flatten()

    def compact(self, config: ModelConfig, spec: SubmodelSpec) -> tuple[int, ...]:
        """Its shape in a submodel."""
        rows = self.rows(config, spec)
        return self.shape if rows is None else (len(rows), *self.shape[1:])


Table = Mapping[str, SideTensor]


def take_side(weights: Mapping[str, Tensor], table: Table, config: ModelConfig, spec: SubmodelSpec) -> Weights:
    """A submodel's part of the tensors in the table, as copies."""
    taken: Weights = {}
    for name, entry in table.items():
        rows = entry.rows(config, spec)
        taken[name] = weights[name].clone() if rows is None else weights[name].index_select(0, rows)
    return taken


def side_shapes(table: Table, config: ModelConfig, spec: SubmodelSpec) -> dict[str, tuple[int, ...]]:
    return {name: entry.compact(config, spec) for name, entry in table.items()}


class SideMerge(SegmentMerge):
    """Selective aggregation of a model and of the tensors next to it; what nobody holds stays bitwise."""

    groups: ClassVar[tuple[str, ...]] = (*SegmentMerge.groups, "side", "side_weight")
    side: Weights
    side_weight: Weights

    def __init__(self, config: ModelConfig, table: Table, rule: Literal["uniform", "samples"] = "uniform") -> None:
        super().__init__(config, rule)
        self.table = table

    def places(self, item: Contribution) -> Mapping[str, tuple[Tensor | slice, ...]]:
        side: dict[str, tuple[Tensor | slice, ...]] = {}
        for name in item.delta.keys() & self.table.keys():
            rows = self.table[name].rows(self.config, item.spec)
            side[name] = () if rows is None else (rows,)
        return {**super().places(item), **side}

    def _without_side(self, item: Contribution) -> Contribution:
        return replace(item, delta={n: d for n, d in item.delta.items() if n not in self.table})

    def add(self, item: Contribution, current: Weights) -> dict[str, float]:
        weight = float(item.samples) if self.rule == "samples" else 1.0
        for name in item.delta.keys() & self.table.keys():
            entry, delta = self.table[name], item.delta[name]
            total = self.side.setdefault(name, torch.zeros(entry.shape))
            count = self.side_weight.setdefault(name, torch.zeros(entry.shape[:1]))
            rows = entry.rows(self.config, item.spec)
            if rows is None:
                total.add_(delta, alpha=weight)
                count.add_(weight)
            else:
                total.index_add_(0, rows, delta, alpha=weight)
                count.index_add_(0, rows, torch.full(rows.shape, weight))
        return super().add(self._without_side(item), current)

    def apply(self, current: Weights) -> Weights:
        updated = super().apply(current)
        for name, total in self.side.items():
            count = self.side_weight[name]
            held = count > 0
            updated[name] = current[name].clone()
            share = count[held].view(-1, *(1,) * (total.ndim - 1))
            updated[name][held] -= total[held] / share
        self.clear("side", "side_weight")
        return updated
