"""Co-S²P's trainer, and that of any method which only says which submodel: plain training, after a mask phase if asked.

masks    ← score and train importances on the candidates, keep the best          (if the task has quotas)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from cos2p.models.layout import Weights
from cos2p.models.spec import BlockSize, SubmodelSpec
from cos2p.submodel.slicing import narrow
from cos2p.training.costs import mask_samples
from cos2p.training.masks import MaskTrainer, MicroBatch, Trained, choose
from cos2p.training.prefix import features_at
from cos2p.training.scores import begin_from_scores
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
