"""Any merge, and exits that start from statistics of the devices' features.

The sums of all devices that reported are kept. When more arrive, the closed form is computed anew and its *change* is
added to the exits: what training has added to them meanwhile stays, and a device that reports late counts all the same.
What is reported at the end of a run replaces the exit.

Classifiers in closed form, from statistics of the devices' features (`training.statistics`).

`means`         w_c = m_c / ‖m_c‖: a sample belongs to the class whose mean points its way (FedNCM)
`discriminant`  w_c = Σ⁻¹ m_c with Σ the scatter inside the classes, as linear discriminant analysis has it: directions
                in which all classes vary alike do not count

Features were scaled to length one before they were added; an exit reads them as they are, so w is divided by their mean
length. Logits are scaled so that at the mean of a class its own is, on average, 3·ln C above the others'. At all depths
of MiniLM (77 classes) and DINOv2 (101) the discriminant's loss on unseen samples is least about there, so that training
starts from exits that are as sure as they may be; class means alone would like 1·ln C to 3·ln C.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import Self

from cos2p.aggregation.merge import Contribution, Merge, Place
from cos2p.aggregation.weights import even_weight
from cos2p.models.layout import Weights, exit_key
from cos2p.submodel.segments import SegmentValues
from cos2p.training.statistics import unpacked

HeadForm = Literal["means", "discriminant"]

RIDGE = 0.3
"""Added to the scatter, as a share of its mean variance. 0.1 and 1 were within a point (docs/results/pretrained.md)."""
LARGEST = 8.0
"""Largest scalar of a head: one that would be larger is less sure, and decides the same."""
LEAST_SPREAD = 1e-3
"""Least variance inside the classes, as a share of all: where there is less, rounding would be divided by."""


def closed_form(
    statistics: Mapping[str, Tensor], depth: int, form: HeadForm, ridge: float = RIDGE, biased: bool = True
) -> tuple[Tensor, Tensor]:
    """Weight and bias of the exit behind `depth` blocks, from sums over all devices.

    A class that nobody has gets zeros as its weights. Without a bias (LLaMA) each w_c has length one where Σ is the
    measure, so that no class is favoured.
    """
    counts, sums = statistics["counts"].double(), statistics[f"{depth}.sums"].double()
    means = sums / counts.clamp_min(1)[:, None]
    if form == "means":
        weight = torch.nn.functional.normalize(means, dim=1)
        bias = torch.zeros_like(counts)
    else:
        weight = torch.linalg.solve(_scatter(statistics, depth, means, ridge), means.T).T
        squares = (weight * means).sum(1)
        bias = -0.5 * squares
        if not biased:
            weight, bias = weight / squares.clamp_min(1e-12).sqrt()[:, None], torch.zeros_like(counts)
    present = counts > 0
    bias = torch.where(present, bias, bias.min())  # an absent class is as far away as the farthest one
    scale = _scale(means[present] @ weight[present].T + bias[present])
    length = statistics[f"{depth}.length"].double() / counts.sum().clamp_min(1)
    weight, bias = scale * weight / length, scale * bias
    shorter = min(1.0, LARGEST / max(float(weight.abs().max()), float(bias.abs().max()), 1e-30))
    return (shorter * weight).float(), (shorter * bias).float()


def _scatter(statistics: Mapping[str, Tensor], depth: int, means: Tensor, ridge: float) -> Tensor:
    """Σ: E[x·xᵀ] less that of the class means, with a ridge as a share of its mean variance."""
    counts = statistics["counts"].double()
    moments = unpacked(statistics[f"{depth}.moments"].double(), means.shape[1])
    inside = (moments - (means.T * counts) @ means) / counts.sum().clamp_min(1)
    all_of_it = float(moments.diagonal().mean()) / max(1.0, float(counts.sum()))
    spread = inside.diagonal().mean().clamp_min(max(1e-9, LEAST_SPREAD * all_of_it))
    return inside + ridge * spread * torch.eye(len(inside), dtype=inside.dtype)


def _scale(logits: Tensor) -> float:
    """The factor that brings the mean lead of a class at its own mean to 3·ln C; one class alone has none."""
    classes = len(logits)
    if classes < 2:
        return 1.0
    lead = float((logits.diagonal()[:, None] - logits).sum()) / (classes * (classes - 1))
    return 3 * math.log(classes) / lead if lead > 1e-9 else 1.0


class HeadMerge(Merge):
    """Statistics go here, every other update to the method's own merge."""

    groups: ClassVar[tuple[str, ...]] = ("arrived", "statistics", "heads", "final")
    arrived: Weights
    """Sums of this round."""
    statistics: Weights
    """Sums of all rounds before."""
    heads: Weights
    """The closed form that is part of the exits' values."""
    final: Weights
    """Sums of this round that were reported at the end."""

    def __init__(self, own: Merge, start: HeadForm | None, finish: HeadForm | None) -> None:
        super().__init__(own.config)
        self.own, self.start, self.finish = own, start, finish

    @property
    def holders(self) -> SegmentValues:
        return self.own.holders

    @holders.setter
    def holders(self, values: SegmentValues) -> None:
        """The method's own merge has them."""

    def decode(self, item: Contribution, current: Weights) -> Contribution:
        return item if "counts" in item.extras else self.own.decode(item, current)

    def products(self, item: Contribution) -> Weights:
        return self.own.products(item)

    def places(self, item: Contribution) -> Mapping[str, Place]:
        return self.own.places(item)

    def weigh(self, item: Contribution, current: Weights) -> dict[str, float] | None:
        return even_weight(1.0) if "counts" in item.extras else self.own.weigh(item, current)

    def add(self, item: Contribution, current: Weights) -> dict[str, float]:
        if "counts" not in item.extras:
            return self.own.add(item, current)
        if item.settings.get("final"):
            self.final = _added(self.final, item.extras)
        else:
            self.arrived = _added(self.arrived, item.extras)
        return even_weight(1.0)

    def apply(self, current: Weights) -> Weights:
        # The last round merges nothing: a memory of earlier updates would move what was just reported.
        updated = dict(current) if self.final else self.own.apply(current)
        if self.arrived and self.start is not None:
            self.statistics, self.arrived = _added(self.statistics, self.arrived), {}
            for name, head in self._closed_heads(self.statistics, self.start).items():
                updated[name] = head + (updated[name] - self.heads.get(name, current[name]))
                self.heads[name] = head
        if self.final and self.finish is not None:
            updated |= self._closed_heads(self.final, self.finish)
            self.final = {}
        return updated

    def _closed_heads(self, statistics: Weights, form: HeadForm) -> Weights:
        found: Weights = {}
        for depth in sorted(int(name.partition(".")[0]) for name in statistics if name.endswith(".sums")):
            key = exit_key(self.config, depth)  # of a shared exit the deepest is written last
            weight, bias = closed_form(statistics, depth, form, biased=self.config.biased)
            found[f"{key}.linear.weight"] = weight
            if self.config.biased:
                found[f"{key}.linear.bias"] = bias
        return found

    def take_over(self, other: Self) -> None:
        super().take_over(other)
        self.own.take_over(other.own)

    def state(self) -> dict[str, Weights]:
        return {**self.own.state(), **super().state()}

    def load_state(self, state: Mapping[str, Weights]) -> None:
        super().load_state(state)
        self.own.load_state({group: tensors for group, tensors in state.items() if group not in self.groups})


def _added(sums: Weights, more: Weights) -> Weights:
    return {name: sums[name] + value if name in sums else value.clone() for name, value in more.items()}
