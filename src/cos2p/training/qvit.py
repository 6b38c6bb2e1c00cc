"""Quantisation-aware training as in Q-ViT (Li et al., NeurIPS 2022) on a device.

The latent weights are full precision, the forward pass sees them quantised (`training.qvit_model`), gradients pass the
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

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from cos2p.errors import TrainingError, UpdateRefused
from cos2p.messages import Order, Task, Update
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.seeding import torch_rng
from cos2p.submodel.beside import Beside, beside_shapes, take_beside
from cos2p.submodel.budget import Ledger
from cos2p.submodel.shape import Shape
from cos2p.submodel.slicing import compact_shapes, extract
from cos2p.submodel.spec import SubmodelSpec
from cos2p.submodel.tape import FLOAT
from cos2p.training.costs import Work, plain, submodel_memory, submodel_work, workload
from cos2p.training.evaluation import FORWARDS
from cos2p.training.masks import Memory
from cos2p.training.mezo import forward_flops
from cos2p.training.optimizers import STATE_BYTES, make_optimizer
from cos2p.training.quantizers import from_codes, on_grid, pack_codes, packed_bytes
from cos2p.training.qvit_model import ENDS, QuantTransformer, build_quant, norm_table, step_table
from cos2p.training.settings import LocalSettings
from cos2p.training.shard import Shard, shuffled
from cos2p.training.trainers import local_scores, register

FORWARDS["qvit"] = build_quant

LARGEST_CHANGE = 8.0
"""How far the logarithm of a step may move in a task; from unset to any sensible value it is less than 6."""


class QuantSettings(LocalSettings):
    bits: int = Field(default=8, ge=2, le=8, description="Of weights and activations; the two ends have 8.")
    wire: Literal["codes", "float32"] = Field(default="codes", description="How the trained weights go back.")
    residual: bool = Field(default=True, description="Keep what moved within the grid for the next task.")
    distillation: float = Field(default=0.5, ge=0, le=1, description="λ: weight of the teacher's answers.")
    dgd: float = Field(default=1.0, ge=0, description="β: weight of the distance between the Gram matrices.")
    trust: Literal["accuracy", "full"] = Field(
        default="accuracy", description="`accuracy`: both weights times the share of samples the teacher gets right."
    )


# ---------------------------------------------------------------- the teacher


@dataclass(frozen=True)
class Teacher:
    """What the model as it came says of every training sample."""

    answers: Tensor
    queries: list[Tensor]
    """For every block with heads: (samples, heads, tokens, head size), 16 bits."""
    keys: list[Tensor]
    accuracy: float

    def batch(self, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
        return [(q[rows].float(), k[rows].float()) for q, k in zip(self.queries, self.keys, strict=True)]


@torch.no_grad()
def ask(model: QuantTransformer, shard: Shard, batch: int, remember: bool) -> Teacher:
    """One pass in full precision; queries and keys only if they are to be remembered."""
    model.quantized = False
    answers: list[Tensor] = []
    seen: list[list[tuple[Tensor, Tensor]]] = []
    for rows in torch.arange(len(shard.train)).split(batch):
        answers.append(model(shard.inputs(shard.train, rows))[-1].argmax(-1))
        seen.append([(q.half(), k.half()) for q, k in model.seen] if remember else [])
    model.quantized, model.seen = True, []
    said = torch.cat(answers)
    blocks = range(len(seen[0]))
    return Teacher(
        said,
        [torch.cat([part[i][0] for part in seen]) for i in blocks],
        [torch.cat([part[i][1] for part in seen]) for i in blocks],
        float((said == shard.train.labels).float().mean()),
    )


def gram(x_BNTH: Tensor) -> Tensor:
    """x·xᵀ/√d_h of every sample and head, divided by its norm."""
    g_BNTT: Tensor = x_BNTH @ x_BNTH.transpose(-2, -1) / math.sqrt(x_BNTH.shape[-1])
    norm: Tensor = torch.linalg.vector_norm(g_BNTT, dim=(-2, -1), keepdim=True)
    return g_BNTT / norm.clamp_min(1e-12)


def gram_distance(ours: list[tuple[Tensor, Tensor]], theirs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The mean over samples, heads and blocks of the distances for queries and for keys, added."""
    total = torch.zeros(())
    for own, other in zip(ours, theirs, strict=True):
        for a, b in zip(own, other, strict=True):
            total = total + torch.linalg.vector_norm(gram(b) - gram(a), dim=(-2, -1)).mean()
    return total / max(1, len(ours))


# ---------------------------------------------------------------- what travels


def quant_table(config: ModelConfig, bits: int, spec: SubmodelSpec) -> dict[str, Beside]:
    return {**norm_table(config), **step_table(config, bits, spec.exits)}


def code_shapes(config: ModelConfig, spec: SubmodelSpec) -> dict[str, tuple[int, ...]]:
    """The tensors that travel as codes: all matrices of the blocks, the patch kernel and the classifier."""
    layers = (".q.weight", ".k.weight", ".v.weight", ".o.weight", ".fc1.weight", ".fc2.weight")
    return {
        name: shape
        for name, shape in compact_shapes(config, spec).items()
        if name.endswith((*layers, ".linear.weight")) or name == "embed.patch.weight"
    }


def code_bits(names: Mapping[str, object], bits: int) -> dict[str, int]:
    return {name: bits if name.startswith("blocks.") else ENDS for name in names}


def step_name(name: str, bits: int) -> str:
    """Where the step of a coded tensor is kept: `blocks.3.q.weight` → `qvit.b2.3.q.step`."""
    if name == "embed.patch.weight":
        return f"qvit.b{bits}.embed.weight.step"
    _, place, layer, _ = name.split(".")
    return f"qvit.b{bits}.exit-{place}.weight.step" if layer == "linear" else f"qvit.b{bits}.{place}.{layer}.step"


def sent_quant(weights: Weights, config: ModelConfig, order: Order) -> Weights:
    """The server's full precision weights: latent weights that start on a grid would hardly leave it again."""
    table = quant_table(config, int(order.settings["bits"]), order.spec)
    return {**extract(weights, config, order.spec), **take_beside(weights, table, config, order.spec)}


def quant_answer(config: ModelConfig, order: Order, spec: SubmodelSpec) -> Mapping[str, tuple[int, ...]]:
    shapes = compact_shapes(config, spec)
    if order.settings["wire"] == "codes":
        coded = code_shapes(config, spec)
        shapes = {name: shape for name, shape in shapes.items() if name not in coded}
    return {**shapes, **beside_shapes(quant_table(config, int(order.settings["bits"]), spec), config, spec)}


def quant_upload(config: ModelConfig, order: Order) -> int:
    floats = FLOAT * sum(map(math.prod, quant_answer(config, order, order.spec).values()))
    if order.settings["wire"] != "codes":
        return floats
    coded = code_shapes(config, order.spec)
    return floats + packed_bytes(coded, code_bits(coded, int(order.settings["bits"])))


def check_codes(config: ModelConfig, order: Order, update: Update, max_rms: float) -> None:
    for name, tensor in update.delta.items():
        if name.endswith(".step") and tensor.numel() and float(tensor.abs().max()) > LARGEST_CHANGE:
            raise UpdateRefused(f"{name} changes by a factor of more than e^{LARGEST_CHANGE:g}")
    if order.settings["wire"] != "codes":
        return
    coded = code_shapes(config, update.spec)
    size = packed_bytes(coded, code_bits(coded, int(order.settings["bits"])))
    found = update.extras.get("codes")
    if set(update.extras) != {"codes"} or found is None or found.dtype != torch.uint8 or found.shape != (size,):
        raise UpdateRefused(f"it carries {sorted(update.extras)}; codes of {size} bytes are expected")


# ---------------------------------------------------------------- what it costs


def _beside_scalars(config: ModelConfig, order: Order) -> int:
    table = quant_table(config, int(order.settings["bits"]), order.spec)
    return sum(map(math.prod, beside_shapes(table, config, order.spec).values()))


def quant_work(config: ModelConfig, order: Order, samples: int, test_samples: int) -> Work:
    """Training, the teacher's pass, and the Gram matrices of both (the student's forward and backward)."""
    base = submodel_work(config, plain(order), samples, test_samples)
    settings, shape = QuantSettings.model_validate(order.settings), Shape.of(config, order.spec)
    extra = 0.0
    if settings.distillation or settings.dgd:
        extra += samples * forward_flops(config, shape, config.tokens)
    if settings.dgd:
        heads = sum(size.heads for size in shape.window)
        extra += settings.epochs * samples * 2 * 4 * 2.0 * config.tokens**2 * config.head_dim * heads
    return replace(base, training=base.training + extra)


def quant_memory(config: ModelConfig, order: Order, samples: int) -> Ledger:
    """Plain training; quantised weights, steps, the teacher's memory; and what quantisers and open attention keep."""
    settings = QuantSettings.model_validate(order.settings)
    base = submodel_memory(config, plain(order), samples)
    load, shape = workload(settings, samples), Shape.of(config, order.spec)
    coded = sum(map(math.prod, code_shapes(config, order.spec).values()))
    beside = _beside_scalars(config, order)
    rows, tokens = load.batch * config.tokens, config.tokens
    kept = largest = 0
    for size in shape.window:
        inner, maps = rows * size.heads * config.head_dim, rows * tokens * size.heads
        # Twice the residual (inputs of both sublayers), the heads six times over, attention before and after its
        # quantiser, the units before the cut, before and after the quantiser.
        kept += FLOAT * (2 * rows * config.dim + 6 * inner + 3 * maps + 3 * rows * size.units)
        if settings.dgd:
            kept += FLOAT * (4 * maps + 2 * inner)
        largest = max(largest, maps, rows * size.units, rows * config.dim)
    teacher = 2 * 2 * samples * config.tokens * config.head_dim * sum(size.heads for size in shape.window)
    return replace(
        base,
        weights=base.weights + FLOAT * (coded + beside),
        gradients=base.gradients + FLOAT * beside,
        optimizer=base.optimizer + STATE_BYTES[settings.optimizer] * beside,
        activations=base.activations + kept + 4 * FLOAT * largest,
        features=base.features + (teacher if settings.dgd else 0) + 8 * samples,
    )


# ---------------------------------------------------------------- training


@register(
    "qvit", work=quant_work, memory=quant_memory, sent=sent_quant, answer=quant_answer, upload=quant_upload,
    check=check_codes,
)  # fmt: skip
def train_quant(config: ModelConfig, task: Task, shard: Shard, memory: Memory) -> tuple[Update, Memory]:
    settings, order = QuantSettings.model_validate(task.order.settings), task.order
    rng = torch_rng(order.seed, "device", order.client, order.attempt)
    coded = code_shapes(config, order.spec) if settings.wire == "codes" else {}
    start = {name: tensor.clone() for name, tensor in task.weights.items()}
    for name in coded:
        left = memory.get(f"qvit.{name}")
        if settings.residual and left is not None and left.shape == start[name].shape:
            start[name] += left
    model = QuantTransformer(config, order.spec, settings.bits, rescale=settings.rescale)
    model.load(start)
    model.train()
    model.see_weights()
    losses, accuracy = _train(model, shard, settings, order, rng)
    end = model.weights()
    delta = {name: task.weights[name] - tensor for name, tensor in end.items() if name not in coded}
    extras: Weights = {}
    if coded:
        bits = code_bits(coded, settings.bits)
        codes = {name: step.codes(end[name], b) for name, (step, b) in model.weight_steps().items()}
        extras = {"codes": pack_codes(codes, bits)}
        for name, values in codes.items() if settings.residual else ():
            step = step_name(name, settings.bits)
            told = from_codes(values, end[step], bits[name]) - on_grid(
                task.weights[name], task.weights[step], bits[name]
            )
            memory[f"qvit.{name}"] = end[name] - task.weights[name] - told
    report = {"loss": sum(losses) / len(losses), "teacher": accuracy, "bits": float(settings.bits)}
    report |= local_scores(config, task, model, shard, settings)
    update = Update(order.client, order.task, order.version, order.spec, delta, len(shard.train), report, extras)
    return update, memory


def _train(
    model: QuantTransformer, shard: Shard, settings: QuantSettings, order: Order, rng: torch.Generator
) -> tuple[list[float], float]:
    """E epochs in place; the label losses of the last one, and the teacher's accuracy."""
    taught = settings.distillation > 0 or settings.dgd > 0
    if settings.dgd > 0:  # what the teacher attends to is compared token by token: all texts at one width
        shard = replace(shard, train=shard.train.dense())
    teacher = ask(model, shard, settings.batch, settings.dgd > 0) if taught else None
    trust = 1.0 if settings.trust == "full" or teacher is None else teacher.accuracy
    share, beta = settings.distillation * trust, settings.dgd * trust
    groups: list[dict[str, Any]] = [
        {"params": [p for n, p in model.named_parameters() if not n.startswith("qvit.")]},
        {"params": [p for n, p in model.named_parameters() if n.startswith("qvit.")], "weight_decay": 0.0},
    ]
    stepper = make_optimizer(settings.optimizer, groups, order.lr, settings.weight_decay)
    losses: list[float] = []
    for rows in shuffled(len(shard.train), settings.batch, settings.epochs, rng, shard.train.widths):
        inputs, labels = shard.train.batch(rows, shard.normalize)
        stepper.zero_grad(set_to_none=True)
        logits = model(inputs)[-1]
        loss = F.cross_entropy(logits, labels)
        losses.append(loss.item())
        if teacher is not None and share:
            loss = (1 - share) * loss + share * F.cross_entropy(logits, teacher.answers[rows])
        if teacher is not None and beta:
            loss = loss + beta * gram_distance(model.seen, teacher.batch(rows))
        model.seen = []
        if not math.isfinite(loss.item()):
            raise TrainingError(f"the loss became {loss.item()}; lower training.lr (now {order.lr:g})")
        loss.backward()
        stepper.step()
    return losses[-max(1, len(losses) // settings.epochs) :], 0.0 if teacher is None else teacher.accuracy
