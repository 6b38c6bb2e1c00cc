"""The loss over the exits: every exit learns from the labels, the shallow ones also from the deepest.

    L = Σ_i (1 − λ2) · CE(ŷ_i, y) + λ2 · t² · KL(ŷ_i, ŷ_deepest)

The teacher is detached: it learns from the labels alone, and its own KL term is zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

IGNORED = -100
"""The label of a token that counts for nothing, torch's own."""


def flatten(logits: Tensor, labels: Tensor, keep_shape: bool = False) -> tuple[Tensor, Tensor]:
    """(B, C) and (B,) stay; language modelling's (B, T, V) and (B, T) become one row for each real token.

    With `keep_shape` for each token, real or not: how many are real is the labels' to say, and to ask a GPU for that
    is to wait for it.
    """
    if logits.ndim == 2:
        return logits, labels
    logits, labels = logits.flatten(0, 1), labels.flatten()
    if keep_shape:
        return logits, labels
    real = labels != -100
    return logits[real], labels[real]


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over rows; 0 for a batch without any (texts of one token have nothing to predict)."""
    return F.cross_entropy(logits, labels) if len(labels) else logits.sum()


def counted_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The same where rows of the label −100 are still there: they count for nothing."""
    return F.cross_entropy(logits, labels, reduction="sum") / (labels != IGNORED).sum().clamp_min(1)


def divergence(student: Tensor, teacher: Tensor, temperature: float, real: Tensor | None = None) -> Tensor:
    """t² · KL(student‖teacher) at temperature t, as the paper prints it: the mean over rows, or over those that are
    `real`."""
    log_s = F.log_softmax(student / temperature, -1)
    log_t = F.log_softmax(teacher.detach() / temperature, -1)
    each = log_s.exp() * (log_s - log_t)
    if real is not None:
        return (each.sum(-1) * real).sum() * temperature**2 / real.sum().clamp_min(1)
    return each.sum() * (temperature**2 / max(1, len(student)))


def exits_loss(
    outputs: Sequence[Tensor],
    labels: Tensor,
    lambda2: float,
    temperature: float = 3.0,
) -> Tensor:
    """The paper's L_weight over all exits, shallowest first. One exit alone gives (1 − λ2)·CE, as the paper does."""
    whole = labels.device.type != "cpu" and outputs[-1].ndim == 3
    flat = [flatten(output, labels, keep_shape=whole) for output in outputs]
    total: Tensor | None = None
    for logits, target in flat:
        own = (counted_cross_entropy if whole else cross_entropy)(logits, target)
        own = (1 - lambda2) * own if lambda2 > 0 else own
        own = own if own.dtype.itemsize >= 4 else own.float()  # exits in 16 bits are added up in 32
        total = own if total is None else total + own
    assert total is not None
    if lambda2 > 0:
        teacher, targets = flat[-1]
        real = targets != IGNORED if whole else None
        for logits, _ in flat[:-1]:
            total = total + lambda2 * divergence(logits, teacher, temperature, real)
    return total
