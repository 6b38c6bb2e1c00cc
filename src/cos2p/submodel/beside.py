"""Tensors beside the model (policies, norms, step sizes, scores), cut along with the heads and units they serve.

A method that needs some adds them to the model's weights under names of its own (`adavit.3.heads.bias`). What a device
gets and sends back of them follows from its submodel, as for the model's own tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from cos2p.models.config import ModelConfig
from cos2p.models.layout import Axis, Weights
from cos2p.models.spec import SubmodelSpec
from cos2p.submodel.slicing import segment_index


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
        keep = spec.keep(self.block)
        if self.per == "head":
            return torch.tensor(keep.heads, dtype=torch.int64)
        return segment_index(config, Axis.QUERY if self.per == "query" else Axis.UNIT, keep)

    def compact(self, config: ModelConfig, spec: SubmodelSpec) -> tuple[int, ...]:
        """Its shape in a submodel."""
        rows = self.rows(config, spec)
        return self.shape if rows is None else (len(rows), *self.shape[1:])


Table = Mapping[str, SideTensor]


def take_beside(weights: Mapping[str, Tensor], table: Table, config: ModelConfig, spec: SubmodelSpec) -> Weights:
    """A submodel's part of the tensors in the table, as copies."""
    taken: Weights = {}
    for name, entry in table.items():
        rows = entry.rows(config, spec)
        taken[name] = weights[name].clone() if rows is None else weights[name].index_select(0, rows)
    return taken


def beside_shapes(table: Table, config: ModelConfig, spec: SubmodelSpec) -> dict[str, tuple[int, ...]]:
    return {name: entry.compact(config, spec) for name, entry in table.items()}
