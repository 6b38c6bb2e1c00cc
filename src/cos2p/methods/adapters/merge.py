"""How adapters of several devices become one: factor by factor, or through their products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from cos2p.aggregation.merge import Contribution, Place, SegmentMerge
from cos2p.aggregation.weights import even_weight
from cos2p.methods.adapters.factors import is_adapter
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights

STALE = 0.5
"""A late step is shortened by (1+τ)^−½."""


class AdapterMerge(SegmentMerge):
    """The head is averaged as any tensor is; what becomes of the adapters is left to its kinds."""

    def __init__(self, config: ModelConfig, rule: Literal["uniform", "samples"]) -> None:
        super().__init__(config, rule, step_exponent=STALE)

    def places(self, item: Contribution) -> Mapping[str, Place]:
        """A device has the first rows of an adapter, as many as its rank."""
        rows: dict[str, Place] = {n: (slice(len(d)),) for n, d in item.delta.items() if is_adapter(n)}
        return {**super().places(item), **rows}

    def products(self, item: Contribution) -> Weights:
        """Two factors of a bounded size have a product that is not: by how much that changes, as rows that carry its
        singular values."""
        found: Weights = {}
        for name, change in item.delta.items():
            key, end = name.rpartition(".")[::2]
            if is_adapter(name) and (end == "up" or f"{key}.up" not in item.delta):
                up, down = (item.received[f"{key}.{each}"][: len(change)] for each in ("up", "down"))
                new_up, new_down = (
                    old - item.delta[f"{key}.{each}"] if f"{key}.{each}" in item.delta else old
                    for old, each in ((up, "up"), (down, "down"))
                )
                found[key] = factored(torch.cat([new_up, -up]), torch.cat([new_down, down]), 2 * len(change))[1]
        return found

    def add(self, item: Contribution, current: Weights) -> dict[str, float]:
        weight = float(item.samples) if self.rule == "samples" else 1.0
        adapters = {name: delta for name, delta in item.delta.items() if is_adapter(name)}
        self.add_adapters(adapters, item.received, weight, (1.0 + item.staleness) ** -STALE)
        super().add(replace(item, delta={n: d for n, d in item.delta.items() if n not in adapters}), current)
        return even_weight(1.0)

    def weigh(self, item: Contribution, current: Weights) -> dict[str, float] | None:
        """One number for all that an update holds."""
        return even_weight(1.0)

    def add_adapters(self, delta: Mapping[str, Tensor], received: Weights, weight: float, step: float) -> None:
        raise NotImplementedError


class FactorMerge(AdapterMerge):
    """Every row of every factor is averaged over the devices whose rank has it.

    Exact where one factor is the same for all (FFA); with two trained factors the mean of products is not the product
    of means.
    """

    groups: ClassVar[tuple[str, ...]] = (*SegmentMerge.groups, "rows", "row_weights")
    rows: Weights
    row_weights: Weights

    def add_adapters(self, delta: Mapping[str, Tensor], received: Weights, weight: float, step: float) -> None:
        for name, change in delta.items():
            rank = len(change)
            total = self.rows.setdefault(name, torch.zeros_like(received[name]))
            total[:rank].add_(change, alpha=weight * step)
            self.row_weights.setdefault(name, torch.zeros(len(total)))[:rank] += weight

    def apply(self, current: Weights) -> Weights:
        updated = super().apply(current)
        for name, total in self.rows.items():
            held = self.row_weights[name] > 0
            updated[name] = current[name].clone()
            updated[name][held] -= total[held] / self.row_weights[name][held, None]
        self.clear("rows", "row_weights")
        return updated


class ProductMerge(AdapterMerge):
    """BA ← BA + Σ p_n (B_nA_n − B⁰_nA⁰_n), cut to the largest rank by its singular values (HLoRA, FlexLoRA).

    The sum is kept as two stacks of rows, left and right factors, never as matrices. Where they have more rows than the
    smaller side of the matrix, they are folded to so many: that changes nothing, and memory does not grow with clients.
    """

    groups: ClassVar[tuple[str, ...]] = (*SegmentMerge.groups, "left", "right", "product_weights")
    left: Weights
    right: Weights
    product_weights: Weights

    def add_adapters(self, delta: Mapping[str, Tensor], received: Weights, weight: float, step: float) -> None:
        for up in (name for name in delta if name.endswith(".up")):
            key, down = up.removesuffix(".up"), up.removesuffix("up") + "down"
            rank = len(delta[up])
            before_up, before_down = received[up][:rank], received[down][:rank]
            amount = weight * step
            left = torch.cat([(before_up - delta[up]) * amount, before_up * -amount])
            right = torch.cat([before_down - delta[down], before_down])
            if key in self.left:
                left, right = torch.cat([self.left[key], left]), torch.cat([self.right[key], right])
            if len(left) > min(left.shape[1], right.shape[1]):
                left, right = factored(left, right, min(left.shape[1], right.shape[1]))
            self.left[key], self.right[key] = left, right
            self.product_weights[key] = self.product_weights.get(key, torch.zeros(())) + weight

    def apply(self, current: Weights) -> Weights:
        updated = super().apply(current)
        for key, total in self.left.items():
            up, down = current[f"{key}.up"], current[f"{key}.down"]
            left = torch.cat([up, total / self.product_weights[key]])
            right = torch.cat([down, self.right[key]])
            updated[f"{key}.up"], updated[f"{key}.down"] = factored(left, right, len(up))
        self.clear("left", "right", "product_weights")
        return updated


def factored(left: Tensor, right: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Two stacks of `rank` rows whose product leftᵀ·right is the closest to that of the given ones.

    Left rows are orthonormal, right rows carry the singular values, largest first.
    """
    q_left, r_left = torch.linalg.qr(left.double().T)
    q_right, r_right = torch.linalg.qr(right.double().T)
    u, s, v = torch.linalg.svd(r_left @ r_right.T)
    kept = min(rank, len(s))
    new_left = (q_left @ u[:, :kept]).T
    new_right = s[:kept, None] * (v[:kept] @ q_right.T)
    return _filled(new_left, rank), _filled(new_right, rank)


def _filled(rows: Tensor, count: int) -> Tensor:
    """With rows of zeros up to `count`."""
    missing = torch.zeros(count - len(rows), rows.shape[1], dtype=rows.dtype)
    return torch.cat([rows, missing]).float().contiguous()
