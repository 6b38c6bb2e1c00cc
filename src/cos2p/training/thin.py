"""Training a thin submodel: an ordinary transformer of a smaller config, with HeteroFL's Scaler.

The Scaler divides the outputs of the embedding and of q, k, v, o, fc1 and fc2 by r in training: a layer that sees a
share r of its inputs then gives as much as the full layer will. An embedding that ends in a norm (BERT) is divided
before that norm, as in the official code. The full model on the server infers without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from cos2p.costs.ledger import Ledger
from cos2p.messages import Order, Task, Update
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.models.spec import SubmodelSpec
from cos2p.models.transformer import ElasticTransformer
from cos2p.settings import Settings
from cos2p.submodel.thin import SCALED_LAYERS, ScaledCut, take_thin, thin_config, thin_shapes
from cos2p.training.costs import TaskFlops, submodel_memory, submodel_work, update_bytes, workload
from cos2p.training.masks import Remembered
from cos2p.training.observed import train_observed
from cos2p.training.observers import Observer
from cos2p.training.settings import LocalSettings
from cos2p.training.shard import Shard
from cos2p.training.trainers import register


class ThinTask(Settings):
    local: LocalSettings
    """`rescale`: whether the Scaler is on."""
    thin: ScaledCut


class Scaler(Observer):
    """Divides the outputs of all layers but norms and exits by r, from the first pass on.

    It stays on when the device tests its own submodel, which learned with it.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def begin(self, model: ElasticTransformer) -> None:
        assert model.embed is not None
        scaled = [getattr(block, name) for block in model.blocks.values() for name in SCALED_LAYERS]
        if model.config.family == "bert":
            model.embed.norm.register_forward_pre_hook(self._divide_before)
        else:
            scaled.append(model.embed)
        for module in scaled:
            module.register_forward_hook(self._divide)

    def _divide(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return output / self.rate

    def _divide_before(self, module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        return (inputs[0] / self.rate,)


def device_order(config: ModelConfig, order: Order) -> tuple[ModelConfig, Order]:
    """The device's own model, and its order as one for plain training of all of it."""
    task = ThinTask.model_validate(order.settings)
    small = thin_config(config, task.thin.rate)
    local = task.local.model_copy(update={"rescale": False})
    return small, replace(order, spec=SubmodelSpec.full(small), settings=local.model_dump(mode="json"))


def _work(config: ModelConfig, order: Order, samples: int, test_samples: int) -> TaskFlops:
    return submodel_work(*device_order(config, order), samples, test_samples)


def _memory(config: ModelConfig, order: Order, samples: int) -> Ledger:
    """As for the small model; the Scaler has the widest output twice for a moment, forward and backward."""
    small, plain = device_order(config, order)
    ledger = submodel_memory(small, plain, samples)
    load = workload(LocalSettings.model_validate(plain.settings), samples)
    widest = max(small.dim, small.heads * small.head_dim, small.mlp)
    scaled = 2 * 4 * load.micro * load.length(small) * widest
    return replace(ledger, overhead=ledger.overhead + scaled)


def _sent(weights: Weights, config: ModelConfig, order: Order) -> Weights:
    return take_thin(weights, config, ThinTask.model_validate(order.settings).thin)


def _answer(config: ModelConfig, order: Order, spec: SubmodelSpec) -> Mapping[str, tuple[int, ...]]:
    return thin_shapes(config, ThinTask.model_validate(order.settings).thin)


def _upload(config: ModelConfig, order: Order) -> int:
    return update_bytes(*device_order(config, order))


@register("thin", work=_work, memory=_memory, sent=_sent, answer=_answer, upload=_upload)
def train_thin(config: ModelConfig, task: Task, shard: Shard, memory: Remembered) -> tuple[Update, Remembered]:
    settings = ThinTask.model_validate(task.order.settings)
    small, order = device_order(config, task.order)
    observer = Scaler(settings.thin.rate) if settings.local.rescale else Observer()
    wrapped = replace(order, settings={"local": order.settings})
    update = train_observed(small, replace(task, order=wrapped), shard, observer)
    return replace(update, spec=task.order.spec), memory
