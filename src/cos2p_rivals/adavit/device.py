"""AdaViT on the device: plain training that also trains the policies, towards a wanted usage of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from cos2p import SubmodelSpec
from cos2p.methods import (
    Batch,
    Learned,
    Ledger,
    LocalSettings,
    Settings,
    TaskContract,
    TaskFlops,
    Trainer,
    Weights,
    state_bytes,
)
from cos2p_rivals.adavit.model import AdaptiveTransformer, policy_table, shares, usage_loss
from cos2p_rivals.side_tensors import side_shapes, take_side
from cos2p_rivals.sizes import FLOAT, scalars


class GateSettings(Settings):
    """How gates are trained: the recipe's, and a part of every task."""

    usage_weight: float = Field(default=2.0, ge=0, description="Weight of each of the three usage terms, 0 to 4.")
    tau: float = Field(default=5.0, gt=0, description="τ: softness of the gates' gradient, 1 to 5.")


class AdaptiveSettings(LocalSettings, GateSettings):
    """Plain training, the gates, and what they aim at."""

    heads: float = Field(default=0.9, gt=0, le=1, description="γ_h: wanted share of heads in use.")
    layers: float = Field(default=0.9, gt=0, le=1, description="γ_l: wanted share of sublayers in use.")
    tokens: float = Field(default=0.9, gt=0, le=1, description="γ_t: wanted share of tokens in use.")


class AdaptiveContract(TaskContract):
    """Plain training, with the policies."""

    settings: AdaptiveSettings

    def sent(self, weights: Weights) -> Weights:
        policies = take_side(weights, policy_table(self.config), self.config, self.order.spec)
        return {**super().sent(weights), **policies}

    def answer(self, spec: SubmodelSpec) -> Mapping[str, tuple[int, ...]]:
        return {**super().answer(spec), **side_shapes(policy_table(self.config), self.config, spec)}

    def policy_scalars(self) -> int:
        return scalars(side_shapes(policy_table(self.config), self.config, self.order.spec))

    def upload(self) -> int:
        return super().upload() + FLOAT * self.policy_scalars()

    def flops(self, samples: int, test_samples: int) -> TaskFlops:
        """Training is as dense as without gates; the policies come on top."""
        base, config, spec = super().flops(samples, test_samples), self.config, self.order.spec
        per_sample = 2.0 * config.tokens * config.dim * (spec.top - 1)
        per_sample += sum(2.0 * config.dim * (len(keep.heads) + 2) for keep in spec.window[1:])
        passes = 3 * self.settings.epochs * samples + test_samples
        return replace(base, training=base.training + passes * per_sample)

    def memory(self, samples: int) -> Ledger:
        """Plain training, the policies, and for every block the masks and what the gates' products keep."""
        base, config, policies = super().memory(samples), self.config, self.policy_scalars()
        rows, tokens = min(self.settings.batch, max(1, samples)) * config.tokens, config.tokens
        kept = 0
        for keep in self.order.spec.window[1:]:
            if keep.heads:
                kept += FLOAT * rows * len(keep.heads) * config.head_dim  # the heads' outputs before their gates
                kept += FLOAT * rows * tokens  # which token sees which, as numbers
            kept += FLOAT * rows * (2 * config.dim + 8)  # both sublayers' outputs before their gates; the gates
        passing = 3 * FLOAT * rows * max(tokens, config.dim)
        return replace(
            base,
            weights=base.weights + FLOAT * policies,
            gradients=base.gradients + FLOAT * policies,
            optimizer=base.optimizer + state_bytes(self.settings.optimizer, [policies]),
            activations=base.activations + kept + passing,
        )


class AdaptiveTrainer(Trainer):
    name: ClassVar[str] = "adavit"
    contract_type = AdaptiveContract
    settings_type = AdaptiveSettings
    supports = frozenset({"step_in_backward", "eight_bit"})
    settings: AdaptiveSettings
    model: AdaptiveTransformer

    def build(self, spec: SubmodelSpec) -> AdaptiveTransformer:
        model = AdaptiveTransformer(self.config, spec, rescale=self.settings.rescale, tau=self.settings.tau)
        model.load({name: tensor.clone() for name, tensor in self.start.items()})
        model.rng = self.rng
        return model

    def objective(self, loss: Tensor, outputs: Sequence[Tensor], batch: Batch) -> Tensor:
        wanted = self.settings
        usage = usage_loss(self.model.used, wanted.heads, wanted.layers, wanted.tokens)
        return loss + wanted.usage_weight * usage

    def end(self) -> Learned:
        report = shares(self.model.used)
        self.model.used = []
        return replace(super().end(), report=report)
