"""First-order scores: how much the loss would change, to first order, if a head or unit were removed.

With a gate at 1 on what a segment puts out, the loss without it is about L − ∂L/∂gate, and ∂L/∂gate = Σ w·∂L/∂w over
the weights that lead out of the segment. A score is the mean of |∂L/∂gate| over samples (Michel et al. 2019, Molchanov
et al. 2019): one pass, no training.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

import torch
import torch.nn.functional as F
from torch import Tensor

from cos2p.errors import TrainingError
from cos2p.training.distillation import flatten
from cos2p.training.losses import zero
from cos2p.training.masks import MaskTrainer, MicroBatch, logit

FURTHEST = 3.0
"""Standard deviations that a score may lie from the mean of its block."""


def first_order(masks: MaskTrainer, batches: Iterable[list[MicroBatch]]) -> tuple[dict[str, Tensor], float]:
    """The score of every candidate whose mask is learned, by kind and block, and the mean loss with all of them."""
    model, totals = masks.model.eval(), {name: torch.zeros_like(i) for name, i in masks.parameters.items()}
    loss_sum, samples, device = zero(model.device), 0, model.device
    for inputs, features, labels in (part for micro in batches for part in micro):
        gates = {name: _gate(name, len(labels), len(total), device) for name, total in totals.items()}
        output = model(inputs, features, masks.by_block(gates))[-1]
        flat = flatten(output, model.targets(labels), keep_shape=device.type != "cpu")
        loss = F.cross_entropy(*flat, reduction="sum")
        gradients = torch.autograd.grad(loss, list(gates.values()))
        for total, gradient in zip(totals.values(), gradients, strict=True):
            total += gradient.view(-1, len(total)).abs().sum(0)
        loss_sum, samples = loss_sum + loss.detach(), samples + len(labels)
    if not all(bool(torch.isfinite(total).all()) for total in totals.values()):
        raise TrainingError("a first-order score of the mask phase is not finite; the model that came has diverged")
    return {name: total / max(1, samples) for name, total in totals.items()}, loss_sum.item() / max(1, samples)


def begin_from_scores(masks: MaskTrainer, batches: Iterable[list[MicroBatch]], met: Set[str]) -> float:
    """Set the importances of the candidates by their scores; returns the loss with all of them.

    Those of a block that was `met` before become the average of both.
    """
    if not masks.parameters:
        return 0.0
    scores, loss = first_order(masks, batches)
    for name, importance in masks.parameters.items():
        fresh = as_importance(scores[name], masks.kept[name])
        importance.data.copy_((importance.data + fresh) / 2 if name in met else fresh)
    return loss


def as_importance(scores: Tensor, count: int) -> Tensor:
    """Importances in the order of the scores, of which `count` are kept on average at the start.

    >>> as_importance(torch.tensor([1.0, 3.0]), 1)
    tensor([-0.7071,  0.7071])
    """
    spread = scores.std() if len(scores) > 1 else torch.zeros(())
    apart = (scores - scores.mean()) / spread if spread > 0 else torch.zeros_like(scores)
    return logit(count / len(scores)) + apart.clamp(-FURTHEST, FURTHEST)


def _gate(name: str, samples: int, segments: int, device: torch.device) -> Tensor:
    """Ones for each sample alone, so that its gradient is too. (B, N) for heads, (B, 1, F) for units."""
    shape = (samples, segments) if name.startswith("heads.") else (samples, 1, segments)
    return torch.ones(shape, device=device).requires_grad_()
