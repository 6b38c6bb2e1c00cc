"""PruneFL on the device (Jiang et al. 2022): plain training that also reports how large each segment's gradient is.

Following the public code, the statistic is the square of the gradient *summed over the task's steps* (noise that points
everywhere cancels, what points one way stays), summed over the scalars of a segment. The mean over the steps is taken
instead of their sum, so that devices with more steps do not count more, and the training-time rescaling is taken out
again: it multiplies a segment's gradient by 1/(kept share), so a small device's would look larger than a large one's.
This needs 4 bytes for every prunable scalar.
"""

from __future__ import annotations

from torch import Tensor

from cos2p.costs.ledger import Ledger
from cos2p.messages import Order, Task, Update
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights, layout, segment_width
from cos2p.models.transformer import Block, ElasticTransformer
from cos2p.settings import Settings
from cos2p.submodel.segments import SegmentValues, segment_key
from cos2p.training.costs import TaskFlops
from cos2p.training.masks import Remembered
from cos2p.training.observed import (
    check_statistics,
    observed_memory,
    observed_work,
    prunable_scalars,
    train_observed,
    upload_with_statistics,
    with_extras,
)
from cos2p.training.observers import Observer
from cos2p.training.settings import LocalSettings
from cos2p.training.shard import Shard
from cos2p.training.trainers import register


class PruneFlTask(Settings):
    local: LocalSettings


class GradientSums(Observer):
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
            if parameter.grad is None or layout(self.config)[name].cut is None:
                continue
            if name in self._sums:
                self._sums[name] += parameter.grad
            else:
                self._sums[name] = parameter.grad.clone()

    def squares(self) -> Weights:
        """‖mean gradient‖² of every held head and unit, block by block."""
        found: SegmentValues = {}
        for name, total in self._sums.items():
            cut = layout(self.config)[name].cut
            assert cut is not None
            dim, axis = cut
            entries = total.square().sum(1 - dim) if total.ndim == 2 else total.square()
            key = segment_key(self.config, name)
            value = entries.view(-1, segment_width(self.config, axis)).sum(-1)
            value = value / (max(1, self._steps) * self._scales[key]) ** 2
            found[key] = found[key] + value if key in found else value
        return found


def _work(config: ModelConfig, order: Order, samples: int, test_samples: int) -> TaskFlops:
    return observed_work(config, order, samples, test_samples, per_scalar=1)


def _memory(config: ModelConfig, order: Order, samples: int) -> Ledger:
    return observed_memory(config, order, samples, extra=4 * prunable_scalars(config, order))


@register("prunefl", work=_work, memory=_memory, upload=upload_with_statistics, check=check_statistics)
def train_prunefl(config: ModelConfig, task: Task, shard: Shard, memory: Remembered) -> tuple[Update, Remembered]:
    observer = GradientSums(config)
    update = train_observed(config, task, shard, observer)
    return with_extras(update, observer.squares()), memory
