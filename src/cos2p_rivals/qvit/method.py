"""FedAvg+Q-ViT: every device trains a quantised model of as many bits as its rate allows; the server averages.

Q-ViT (Li et al., NeurIPS 2022; see `device` and `model`) is no federated method. What a rate R_n
means for it is our choice: bits_n = ⌊32·R_n⌋ between 2 and 8, so that stored and sent weights take R_n of their 32 bits
(1/16: 2 bits, from 1/4 on: 8); below 1/16, 2 bits and the leading heads and units of rate 16·R_n. *Training* memory is
not reduced, it grows: latent weights, gradients and optimiser are full size. So it is marked in tables.

On the wire the server sends full precision weights; codes and step sizes come back. By what the quantised weights moved
on average the server moves its full precision model: were it replaced by their average instead, a few devices of 2 bits
would pull everybody's model onto their grid. A device keeps what it moved within a grid for its next task (`residual`),
or steps smaller than half a grid would be lost for ever. Steps are averaged among devices of the same bit-width only.
The server's model is evaluated quantised, with the norms on queries and keys, at the largest bit-width of the fleet.

From the public code: LSQ with a step per output row, steps and zero-points per channel (per head for queries, keys,
values, attention), first steps 2·mean|x|/√Q, GELU cut to ±10, 8 bits at both ends, IRM as LayerNorm per head, hard
distillation with ½. From the paper, as the code has none: DGD; its mean over blocks and heads, and the weight 1, are
ours. Ours too: whether an activation is signed follows from where it is (attention is not, all else is) instead of from
the first batch, which comes to the same; zero-points start at 0 (theirs round to 0); steps as logarithms; the recipe's
optimiser, rate and epochs (theirs: LAMB, 3e-4, from a pretrained model). The teacher is the model a device received.
A young one is mostly wrong, so its two terms count as much as it is right on the device's own samples (`trust`).
"""

from __future__ import annotations

import math
from typing import ClassVar

from cos2p.methods import (
    Assignment,
    AveragingSettings,
    Call,
    Member,
    Merge,
    RunContext,
    Settings,
    Trainer,
    Weights,
    cut,
    shared,
)
from cos2p_rivals.leading import LeadingMethod, output_scales, require_vit
from cos2p_rivals.qvit.device import QuantLearning, QuantSettings, QuantTrainer
from cos2p_rivals.qvit.merge import CodesMerge
from cos2p_rivals.qvit.model import build_quant, first_tensors, norm_table, step_table
from cos2p_rivals.qvit.wire import step_name


class QViTSettings(AveragingSettings, QuantLearning):
    """Quantisation on the devices, averaging on the server."""


class QuantMethod(LeadingMethod):
    """Local training with quantisation; bits and submodels are left to its kinds."""

    settings_type: ClassVar[type[Settings]] = QViTSettings
    trainers: ClassVar[tuple[type[Trainer], ...]] = (QuantTrainer,)
    embeddings = ("whole",)
    settings: QViTSettings
    widths: ClassVar[tuple[int, ...]]
    """The bit-widths there may be."""

    def __init__(self, settings: Settings, context: RunContext) -> None:
        require_vit(context.config, self.name, "its quantisers and norms are those of image transformers")
        super().__init__(settings, context)
        self.budgets = {n: cut(context.config, self.keep(m), ratio=0.0) for n, m in context.members.items()}

    def bits(self, member: Member) -> int:
        raise NotImplementedError

    def keep(self, member: Member) -> float:
        """Which rate of leading heads and units a device holds."""
        raise NotImplementedError

    def assign(self, call: Call) -> Assignment:
        own = {**shared(self.settings, QuantLearning), "bits": self.bits(call.member)}
        local = QuantSettings.model_validate({**self.local(call.member).model_dump(), **own})
        return Assignment(self.spec(call.member.name), local, QuantTrainer)

    def initial_weights(self, weights: Weights) -> Weights:
        return {**weights, **first_tensors(self.context.config, self.widths)}

    def evaluated_weights(self, weights: Weights) -> Weights:
        """At the largest bit-width of the fleet. Where outputs are rescaled their steps are too."""
        best = max(self.bits(member) for member in self.context.members.values())
        evaluated = super().evaluated_weights(
            {n: t for n, t in weights.items() if not n.startswith("qvit.b") or n.startswith(f"qvit.b{best}.")}
        )
        if self.settings.rescale:
            for layer, scale in output_scales(self.context.config, self.largest()).items():
                name = step_name(f"{layer}.weight", best)
                if scale != 1.0:
                    evaluated[name] = evaluated[name] + math.log(scale)
        return evaluated

    own_model = staticmethod(build_quant)

    def merge(self) -> Merge:
        config = self.context.config
        table = {**norm_table(config)}
        for bits in self.widths:
            table |= step_table(config, bits)
        return CodesMerge(config, table, self.settings.weights)


class FedAvgQViT(QuantMethod):
    name: ClassVar[str] = "fedavg-qvit"
    title: ClassVar[str] = "FedAvg+Q-ViT"
    over_budget: ClassVar[bool] = True
    widths: ClassVar[tuple[int, ...]] = tuple(range(2, 9))

    def bits(self, member: Member) -> int:
        return bits_of(member.rate)

    def keep(self, member: Member) -> float:
        return min(1.0, 16 * member.rate)


def bits_of(rate: float) -> int:
    """⌊32·R⌋, at least 2 and at most 8.

    >>> [bits_of(rate) for rate in (1 / 64, 1 / 16, 1 / 8, 0.25, 1.0)]
    [2, 2, 4, 8, 8]
    """
    return min(8, max(2, math.floor(32 * rate + 1e-9)))
