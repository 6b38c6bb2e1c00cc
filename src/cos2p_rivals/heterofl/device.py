"""Training a scaled submodel: an ordinary transformer of a smaller config, with HeteroFL's Scaler.

The Scaler divides the outputs of the embedding and of q, k, v, o, fc1 and fc2 by r in training: a layer that sees a
share r of its inputs then gives as much as the full layer will. An embedding that ends in a norm (BERT) is divided
before that norm, as in the official code. The full model on the server infers without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor, nn

from cos2p import ElasticTransformer, ModelConfig, SubmodelSpec
from cos2p.methods import (
    ExtendedSettings,
    Ledger,
    LocalSettings,
    Order,
    TaskContract,
    Trainer,
    Update,
    Weights,
)
from cos2p_rivals.heterofl.cut import SCALED_LAYERS, ScaledCut, scaled_config, scaled_shapes, take_scaled
from cos2p_rivals.sizes import FLOAT


class ScaledTask(ExtendedSettings):
    """`local.rescale`: whether the Scaler is on."""

    thin: ScaledCut


class Scaler:
    """Divides the outputs of all layers but norms and exits by r, from the first pass on.

    It stays on when the device tests its own submodel, which learned with it.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def begin(self, model: ElasticTransformer) -> None:
        assert model.embed is not None
        blocks = model.blocks.values()
        scaled = [getattr(block, name) for block in blocks for name in SCALED_LAYERS if hasattr(block, name)]
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


class ScaledContract(TaskContract):
    """All of the device's own, smaller model."""

    settings: ScaledTask

    def __init__(self, config: ModelConfig, order: Order, settings: ScaledTask) -> None:
        self.full_config, self.full_spec = config, order.spec
        small = scaled_config(config, settings.thin.rate)
        super().__init__(small, replace(order, spec=SubmodelSpec.full(small)), settings)

    @property
    def local(self) -> LocalSettings:
        """The Scaler does what the rescaling does for other submodels."""
        return self.settings.local.model_copy(update={"rescale": False})

    def sent(self, weights: Weights) -> Weights:
        return take_scaled(weights, self.full_config, self.settings.thin)

    def answer(self, spec: SubmodelSpec) -> Mapping[str, tuple[int, ...]]:
        return scaled_shapes(self.full_config, self.settings.thin)

    def memory(self, samples: int) -> Ledger:
        """As for the small model; the Scaler has the widest output twice for a moment, forward and backward."""
        ledger, batch = super().memory(samples), min(self.local.batch, max(1, samples))
        widest = max(self.config.dim, self.config.heads * self.config.head_dim, self.config.mlp)
        at_once = self.local.memory_optimizations.at_once(batch)
        scaled = 2 * FLOAT * at_once * self.config.tokens * widest
        return replace(ledger, overhead=ledger.overhead + scaled)


class ScaledTrainer(Trainer):
    """Plain training of it."""

    name: ClassVar[str] = "thin"
    contract_type = ScaledContract
    settings_type = ScaledTask
    supports = frozenset({"step_in_backward", "eight_bit", "recompute", "micro_batch"})
    contract: ScaledContract
    settings: ScaledTask

    def begin(self) -> None:
        if self.settings.local.rescale:
            Scaler(self.settings.thin.rate).begin(self.model)

    def train(self) -> Update:
        return replace(super().train(), spec=self.contract.full_spec)
