"""Quantisation-aware training as in Q-ViT (Li et al., NeurIPS 2022) on a device.

The latent weights are full precision, the forward pass sees them quantised (`model`), gradients pass the
rounding. The loss is that of hard distillation plus distribution guided distillation (the paper's DGD):

    (1 − λ)·CE(y) + λ·CE(argmax teacher) + β · mean over blocks and heads of ‖G_teacher − G‖

for queries and for keys, with G = x·xᵀ/√d_h divided by its own norm. The teacher is the model as it came, in full
precision; its answers, queries and keys are computed once, before training, and kept, so that no second model is held.

Latent weights, gradients and optimiser state are as large as ever, and the quantised weights come on top: training
needs *more* memory than without quantisation. What shrinks is what is stored, sent and used afterwards.

On the wire the trained weights are codes and steps. Both sides know how the weights that came are quantised, so what
the server learns is by how much the *quantised* weights moved; by that it moves its own. What a device has moved within
a grid it keeps, and adds to the weights of its next task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor
from torch.optim import Optimizer

from cos2p import SubmodelSpec, make_optimizer
from cos2p.methods import (
    Batch,
    Learned,
    Ledger,
    LocalSettings,
    Settings,
    TaskContract,
    TaskFlops,
    TensorForm,
    Trainer,
    Update,
    UpdateRefused,
    Weights,
    forward_flops,
    state_bytes,
)
from cos2p_rivals.qvit.model import QuantTransformer
from cos2p_rivals.qvit.quantizers import from_codes, on_grid, pack_codes, packed_bytes
from cos2p_rivals.qvit.teacher import Teacher, ask, gram_distance
from cos2p_rivals.qvit.wire import code_bits, code_shapes, quant_table, step_name
from cos2p_rivals.side_tensors import side_shapes, take_side
from cos2p_rivals.sizes import FLOAT, scalars

LARGEST_CHANGE = 8.0
"""How far the logarithm of a step may move in a task; from unset to any sensible value it is less than 6."""


class QuantLearning(Settings):
    """How a quantised model is trained and sent: the recipe's, and a part of every task."""

    wire: Literal["codes", "float32"] = Field(default="codes", description="How trained weights go back.")
    residual: bool = Field(default=True, description="Devices keep what moved within the grid, for their next task.")
    distillation: float = Field(default=0.5, ge=0, le=1, description="λ: weight of the teacher's answers; 0: none.")
    dgd: float = Field(default=1.0, ge=0, description="β: weight of distribution guided distillation; 0: none.")
    trust: Literal["accuracy", "full"] = Field(
        default="accuracy", description="Teach as much as the teacher is right, or always (the original)."
    )


class QuantSettings(LocalSettings, QuantLearning):
    """Plain training, quantised."""

    bits: int = Field(default=8, ge=2, le=8, description="Of weights and activations; the two ends have 8.")


class QuantContract(TaskContract):
    """Codes and steps go back, and the rest as numbers."""

    settings: QuantSettings

    def side_shapes(self, spec: SubmodelSpec) -> dict[str, tuple[int, ...]]:
        """Norms and steps next to the model."""
        return side_shapes(quant_table(self.config, self.settings.bits, spec), self.config, spec)

    def code_shapes(self, spec: SubmodelSpec) -> dict[str, tuple[int, ...]]:
        """The tensors that come back as codes."""
        return code_shapes(self.config, spec) if self.settings.wire == "codes" else {}

    def code_bytes(self, spec: SubmodelSpec) -> int:
        coded = self.code_shapes(spec)
        return packed_bytes(coded, code_bits(coded, self.settings.bits))

    def sent(self, weights: Weights) -> Weights:
        """The server's full precision weights: latent weights that start on a grid would hardly leave it again."""
        table = quant_table(self.config, self.settings.bits, self.order.spec)
        return {**super().sent(weights), **take_side(weights, table, self.config, self.order.spec)}

    def answer(self, spec: SubmodelSpec) -> Mapping[str, tuple[int, ...]]:
        coded = self.code_shapes(spec)
        plain = {name: shape for name, shape in super().answer(spec).items() if name not in coded}
        return {**plain, **self.side_shapes(spec)}

    def upload(self) -> int:
        spec = self.order.spec
        return FLOAT * scalars(self.answer(spec)) + self.code_bytes(spec)

    def extra_tensors(self, spec: SubmodelSpec) -> Mapping[str, TensorForm]:
        if self.settings.wire != "codes" or not self.code_shapes(spec):
            return {}
        return {"codes": TensorForm((self.code_bytes(spec),), torch.uint8)}

    def check(self, update: Update, max_rms: float) -> None:
        for name, tensor in update.delta.items():
            if name.endswith(".step") and tensor.numel() and float(tensor.abs().max()) > LARGEST_CHANGE:
                raise UpdateRefused(f"{name} changes by a factor of more than e^{LARGEST_CHANGE:g}")

    def flops(self, samples: int, test_samples: int) -> TaskFlops:
        """Training, the teacher's pass, and the Gram matrices of both (the student's forward and backward)."""
        base, settings, config = super().flops(samples, test_samples), self.settings, self.config
        spec, extra = self.order.spec, 0.0
        if settings.distillation or settings.dgd:
            extra += samples * forward_flops(config, spec)
        if settings.dgd:
            heads = sum(len(keep.heads) for keep in spec.window)
            extra += settings.epochs * samples * 2 * 4 * 2.0 * config.tokens**2 * config.head_dim * heads
        return replace(base, training=base.training + extra)

    def memory(self, samples: int) -> Ledger:
        """Plain training; quantised weights, steps, the teacher's memory; what quantisers and open attention keep."""
        base, config, settings, spec = super().memory(samples), self.config, self.settings, self.order.spec
        coded, side = scalars(code_shapes(config, spec)), scalars(self.side_shapes(spec))
        rows, tokens = min(settings.batch, max(1, samples)) * config.tokens, config.tokens
        kept = largest = 0
        for keep in spec.window:
            heads, units = len(keep.heads), len(keep.units)
            inner, maps = rows * heads * config.head_dim, rows * tokens * heads
            # Twice the residual (inputs of both sublayers), the heads six times over, attention before and after its
            # quantiser, the units before the cut, before and after the quantiser.
            kept += FLOAT * (2 * rows * config.dim + 6 * inner + 3 * maps + 3 * rows * units)
            if settings.dgd:
                kept += FLOAT * (4 * maps + 2 * inner)
            largest = max(largest, maps, rows * units, rows * config.dim)
        teacher = 2 * 2 * samples * config.tokens * config.head_dim * sum(len(keep.heads) for keep in spec.window)
        return replace(
            base,
            weights=base.weights + FLOAT * (coded + side),
            gradients=base.gradients + FLOAT * side,
            optimizer=base.optimizer + state_bytes(settings.optimizer, [side]),
            activations=base.activations + kept + 4 * FLOAT * largest,
            features=base.features + (teacher if settings.dgd else 0) + 8 * samples,
        )


class QuantTrainer(Trainer):
    name: ClassVar[str] = "qvit"
    contract_type = QuantContract
    settings_type = QuantSettings
    contract: QuantContract
    settings: QuantSettings
    model: QuantTransformer
    teacher: Teacher | None

    def build(self, spec: SubmodelSpec) -> QuantTransformer:
        """The latent weights start where they came, and by what the device had moved within the grid."""
        latent = {name: tensor.clone() for name, tensor in self.start.items()}
        for name in self.contract.code_shapes(spec):
            left = self.remembered.get(f"qvit.{name}")
            if self.settings.residual and left is not None and left.shape == latent[name].shape:
                latent[name] += left
        model = QuantTransformer(self.config, spec, self.settings.bits, rescale=self.settings.rescale)
        model.load(latent)
        return model

    def begin(self) -> None:
        settings = self.settings
        self.model.see_weights()
        taught = settings.distillation > 0 or settings.dgd > 0
        self.teacher = ask(self.model, self.shard, settings.batch, settings.dgd > 0) if taught else None
        trust = 1.0 if settings.trust == "full" or self.teacher is None else self.teacher.accuracy
        self.share, self.beta = settings.distillation * trust, settings.dgd * trust

    def optimizers(self) -> list[Optimizer]:
        """Norms and steps do not decay."""
        named = list(self.model.named_parameters())
        groups: list[dict[str, Any]] = [
            {"params": [p for n, p in named if not n.startswith("qvit.")]},
            {"params": [p for n, p in named if n.startswith("qvit.")], "weight_decay": 0.0},
        ]
        return [make_optimizer(self.settings.optimizer, groups, self.order.lr, self.settings.weight_decay)]

    def objective(self, loss: Tensor, outputs: Sequence[Tensor], batch: Batch) -> Tensor:
        if self.teacher is not None and self.share:
            answers = F.cross_entropy(outputs[-1], self.teacher.answers[batch.rows])
            loss = (1 - self.share) * loss + self.share * answers
        if self.teacher is not None and self.beta:
            loss = loss + self.beta * gram_distance(self.model.seen, self.teacher.batch(batch.rows))
        self.model.seen = []
        return loss

    def end(self) -> Learned:
        end, coded = self.model.weights(), self.contract.code_shapes(self.order.spec)
        delta = {name: self.start[name] - tensor for name, tensor in end.items() if name not in coded}
        accuracy = 0.0 if self.teacher is None else self.teacher.accuracy
        self.teacher = None
        report = {"teacher": accuracy, "bits": float(self.settings.bits)}
        if not coded:
            return Learned(delta, report=report)
        codes = {name: step.codes(end[name], bits) for name, (step, bits) in self.model.weight_steps().items()}
        if self.settings.residual:
            self._keep_residual(codes, end)
        return Learned(delta, {"codes": pack_codes(codes, code_bits(coded, self.settings.bits))}, report)

    def _keep_residual(self, codes: Mapping[str, Tensor], end: Weights) -> None:
        """The tensors that moved and are not in the codes."""
        bits = code_bits(codes, self.settings.bits)
        for name, values in codes.items():
            step, came = step_name(name, self.settings.bits), self.start[name]
            sent = from_codes(values, end[step], bits[name]) - on_grid(came, self.start[step], bits[name])
            self.remembered[f"qvit.{name}"] = end[name] - came - sent
