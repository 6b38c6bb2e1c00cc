"""PruneFL on the device (Jiang et al. 2022): plain training that also reports how large each segment's gradient is.

Following the public code, the statistic is the square of the gradient *summed over the task's steps* (noise that points
everywhere cancels, what points one way stays), summed over the scalars of a segment. The mean over the steps is taken
instead of their sum, so that devices with more steps do not count more, and the training-time rescaling is taken out
again: it multiplies a segment's gradient by 1/(kept share), so a small device's would look larger than a large one's.
This needs 4 bytes for every prunable scalar.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from cos2p import ElasticTransformer, ModelConfig
from cos2p.methods import Block, ExtendedSettings, Learned, Trainer, Weights, layout, segmented
from cos2p_rivals.segment_reports import ReportingContract


class GradientSums:
    """Σ_steps g of every tensor that can be pruned."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self._sums: dict[str, Tensor] = {}
        self._steps = 0
        self._scales: dict[str, float] = {}

    def begin(self, model: ElasticTransformer) -> None:
        for block, module in model.blocks.items():
            assert isinstance(module, Block)
            self._scales |= {f"heads.{block}": module.head_scale, f"units.{block}": module.unit_scale}

    def after_step(self, model: ElasticTransformer) -> None:
        self._steps += 1
        for name, parameter in model.named_parameters():
            if parameter.grad is None or not layout(self.config)[name].in_block:
                continue
            if name in self._sums:
                self._sums[name] += parameter.grad
            else:
                self._sums[name] = parameter.grad.clone()

    def squares(self) -> Weights:
        """‖mean gradient‖² of every held head and unit, block by block."""
        found: Weights = {}
        for name, total in self._sums.items():
            place = segmented(self.config)[name]
            assert place.dim is not None
            entries = total.square().sum(1 - place.dim) if total.ndim == 2 else total.square()
            value = entries.view(-1, place.width).sum(-1)
            value = value / (max(1, self._steps) * self._scales[place.key]) ** 2
            found[place.key] = found[place.key] + value if place.key in found else value
        return found


class PruneFlContract(ReportingContract):
    flops_per_scalar: ClassVar[float] = 1

    def held_bytes(self) -> int:
        return 4 * self.prunable_scalars()


class PruneFlTrainer(Trainer):
    name: ClassVar[str] = "prunefl"
    contract_type = PruneFlContract
    settings_type = ExtendedSettings
    supports = frozenset({"eight_bit", "micro_batch", "recompute"})

    def begin(self) -> None:
        self.sums = GradientSums(self.config)
        self.sums.begin(self.model)

    def after_step(self) -> None:
        self.sums.after_step(self.model)

    def end(self) -> Learned:
        return replace(super().end(), extras=self.sums.squares())
