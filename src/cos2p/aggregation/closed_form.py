"""Classifiers in closed form, from statistics of the devices' features (`training.statistics`).

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
from typing import Literal

import torch
from torch import Tensor

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
    """What brings the mean lead of a class at its own mean to 3·ln C; one class alone has none."""
    classes = len(logits)
    if classes < 2:
        return 1.0
    lead = float((logits.diagonal()[:, None] - logits).sum()) / (classes * (classes - 1))
    return 3 * math.log(classes) / lead if lead > 1e-9 else 1.0
