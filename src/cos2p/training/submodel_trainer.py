"""Co-S²P's trainer, and that of any method which only says which submodel: plain training, after a mask phase if asked.

masks    ← score and train importances on the candidates, keep the best          (if the task has quotas)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from cos2p.errors import TrainingError
from cos2p.models.layout import Weights
from cos2p.models.spec import BlockSize, SubmodelSpec
from cos2p.submodel.slicing import narrow
from cos2p.training.costs import mask_samples
from cos2p.training.losses import flatten, zero
from cos2p.training.masks import MaskTrainer, MicroBatch, Trained, choose, logit
from cos2p.training.prefix import features_at
from cos2p.training.settings import LocalSettings
from cos2p.training.shard import shuffled
from cos2p.training.trainer import Trainer


class SubmodelTrainer(Trainer):
    name: ClassVar[str] = "submodel"
    supports = Trainer.supports
    settings: LocalSettings

    def prepare(self, report: dict[str, float]) -> tuple[SubmodelSpec, Weights]:
        wide, quotas = self.order.spec, self.order.quotas
        if quotas is None:
            return super().prepare(report)
        report["mask_loss"] = self._train_masks(quotas)
        spec = choose(self.remembered, self.config, wide, quotas, self.rng)
        return spec, narrow(self.given(), self.config, wide, spec)

    def _train_masks(self, quotas: tuple[BlockSize, ...]) -> float:
        met = frozenset(self.remembered)
        deepest = replace(self.order.spec, exits=self.order.spec.exits[-1:])  # masks learn from it alone
        candidates = self.given(own=True)
        model = self.load(deepest, candidates, rescale=False)
        phase = self.settings.mask
        kinds = Trained(phase.heads, phase.units)
        masks = MaskTrainer(model, self.remembered, quotas, kinds, phase.lambda1, self.rng)
        drawn = self._mask_samples()
        loss = 0.0
        if phase.scores:
            loss = begin_from_scores(masks, self._mask_batches(drawn, 1), met)
        if phase.epochs == 0:
            masks.remember()
            return loss
        return masks.train(self._mask_batches(drawn, phase.epochs), phase.lr)

    def _mask_samples(self) -> Tensor | None:
        """The samples that the phase sees; None: all of them."""
        samples = len(self.shard.train)
        seen = mask_samples(samples, self.settings.mask.share)
        return None if seen == samples else torch.randperm(samples, generator=self.rng)[:seen]

    def _mask_batches(self, drawn: Tensor | None, epochs: int) -> Iterator[list[MicroBatch]]:
        train, batch, phase = self.shard.train, self.settings.batch, self.settings.mask
        count, widths = len(train), train.widths
        if drawn is not None:
            count, widths = len(drawn), None if widths is None else widths[drawn]
        for picked in shuffled(count, batch, epochs, self.rng, widths):
            rows = picked if drawn is None else drawn[picked]
            parts = map(self.batch, rows.split(phase.micro_batch or batch))
            yield [(p.inputs, features_at(self.features, p.rows, p.inputs), p.labels) for p in parts]


# First-order scores: how much the loss would change, to first order, if a head or unit were removed.
#
# With a gate at 1 on what a segment puts out, the loss without it is about L − ∂L/∂gate, and ∂L/∂gate = Σ w·∂L/∂w over
# the weights that lead out of the segment. A score is the mean of |∂L/∂gate| over samples (Michel et al. 2019,
# Molchanov et al. 2019): one pass, no training.


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
