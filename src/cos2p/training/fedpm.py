"""Training of a random network's mask (FedPM, Isik et al., ICLR 2023; its Algorithm 1, client side).

The weights of heads and units are random signs times a constant, made on the device from the run's seed and never
changed. What is trained is a score s for every weight: a forward pass uses the weight with probability θ = σ(s),

    w ⊙ M,  M ~ Bernoulli(θ)

and the draw's gradient goes to θ: as it is (`identity`), or times θ, as the public code has it (`official`). A task
brings θ in place of the weights; one draw of the mask goes back, a bit for each weight. Tensors that are no part of a
segment (embeddings, norms, output biases, exits) train as usual.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.func import functional_call

from cos2p.errors import TrainingError, UpdateRefused
from cos2p.messages import Order, Task, Update
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights, layout
from cos2p.models.transformer import ElasticTransformer
from cos2p.seeding import torch_rng
from cos2p.submodel.budget import Ledger
from cos2p.submodel.slicing import compact_shapes, take, window_slices
from cos2p.submodel.spec import SubmodelSpec
from cos2p.submodel.tape import FLOAT
from cos2p.training.costs import Work, plain, submodel_memory, submodel_work
from cos2p.training.distillation import exits_loss
from cos2p.training.masks import Memory
from cos2p.training.optimizers import STATE_BYTES, make_optimizer
from cos2p.training.settings import LocalSettings, OptimizerName
from cos2p.training.shard import Shard, shuffled
from cos2p.training.trainers import local_scores, register, submodel

Ste = Literal["official", "identity"]

SURE = 0.99
"""A bit counts as a probability of 0.99 or 0.01 (public code), so that its logit is finite."""


class ScoreSettings(LocalSettings):
    """`optimizer` and the order's rate are for the dense tensors; the scores have their own."""

    score_lr_factor: float = Field(default=100.0, gt=0, description="Learning rate of the scores, in units of lr.")
    score_optimizer: OptimizerName = Field(default="adamw", description="Optimiser of the scores.")
    ste: Ste = Field(default="official", description="How the gradient passes the draw: times θ, or as it is.")
    gain: float = Field(default=1.0, gt=0, description="Weights are ±gain/√fan_in.")


def is_masked(config: ModelConfig, name: str) -> bool:
    """Whether a tensor belongs to heads or units."""
    return layout(config)[name].cut is not None


def random_weight(config: ModelConfig, name: str, seed: int, gain: float) -> Tensor:
    """±gain/√fan_in, the same on every device and on the server. A bias has the constant of its layer."""
    shape = layout(config)[name].shape
    matrix = name.removesuffix(".bias") + ".weight" if name.endswith(".bias") else name
    fan_in = layout(config)[matrix].shape[1]
    signs = torch.randint(0, 2, shape, generator=torch_rng(seed, "fedpm", name)) * 2 - 1
    return signs * (gain / math.sqrt(fan_in))


def random_weights(config: ModelConfig, spec: SubmodelSpec, seed: int, gain: float) -> Weights:
    """The random network's tensors of a submodel, cut one after the other."""
    return {
        name: take({name: random_weight(config, name, seed, gain)}, {name: cut})[name]
        for name, cut in window_slices(config, spec).items()
        if is_masked(config, name)
    }


class _Masked(torch.autograd.Function):
    """w ⊙ M; backward to the scores. Nothing is kept but what is there anyway."""

    @staticmethod
    def forward(ctx: Any, score: Tensor, weight: Tensor, uniform: Tensor, ste: Ste) -> Tensor:
        ctx.save_for_backward(score, weight)
        ctx.ste = ste
        return weight * (uniform < score.sigmoid())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        score, weight = ctx.saved_tensors
        theta = score.sigmoid()
        slope = theta * (1 - theta)
        return grads[0] * weight * (slope * theta if ctx.ste == "official" else slope), None, None, None


def draw(score: Tensor, weight: Tensor, rng: torch.Generator, ste: Ste) -> Tensor:
    """The weight under a fresh mask."""
    return _Masked.apply(score, weight, torch.rand(score.shape, generator=rng), ste)  # type: ignore[no-any-return, no-untyped-call]


def to_scores(theta: Tensor) -> Tensor:
    return torch.logit(theta, eps=1 - SURE)


# ---------------------------------------------------------------- bits on the wire


def pack_bits(masks: Mapping[str, Tensor]) -> Tensor:
    """All masks in the order of their names, eight entries a byte."""
    bits = [masks[name].flatten().numpy().astype(np.uint8) for name in sorted(masks)]
    return torch.from_numpy(np.packbits(np.concatenate(bits) if bits else np.zeros(0, np.uint8)))


def unpack_bits(packed: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> Weights:
    """The counterpart, as probabilities: a set bit is 0.99, another 0.01."""
    bits = torch.from_numpy(np.unpackbits(packed.numpy()).astype(np.float32))
    masks: Weights = {}
    start = 0
    for name in sorted(shapes):
        size = math.prod(shapes[name])
        masks[name] = bits[start : start + size].view(shapes[name]) * (2 * SURE - 1) + (1 - SURE)
        start += size
    return masks


def check_bits(update: Update, shapes: Mapping[str, tuple[int, ...]]) -> None:
    size = -(-sum(map(math.prod, shapes.values())) // 8)
    found = update.extras.get("mask")
    if set(update.extras) != {"mask"} or found is None or found.dtype != torch.uint8 or found.shape != (size,):
        raise UpdateRefused(f"it carries {sorted(update.extras)}; one mask of {size} bytes is expected")


# ---------------------------------------------------------------- what it costs and what travels


def masked_shapes(config: ModelConfig, spec: SubmodelSpec) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, shape in compact_shapes(config, spec).items() if is_masked(config, name)}


def dense_answer(config: ModelConfig, order: Order, spec: SubmodelSpec) -> Mapping[str, tuple[int, ...]]:
    """Only dense tensors come back as numbers."""
    return {name: shape for name, shape in compact_shapes(config, spec).items() if not is_masked(config, name)}


def _masked_count(config: ModelConfig, order: Order) -> int:
    return sum(map(math.prod, masked_shapes(config, order.spec).values()))


def mask_upload(config: ModelConfig, order: Order) -> int:
    dense = sum(map(math.prod, dense_answer(config, order, order.spec).values()))
    return FLOAT * dense + -(-_masked_count(config, order) // 8)


def score_work(config: ModelConfig, order: Order, samples: int, test_samples: int) -> Work:
    return submodel_work(config, plain(order), samples, test_samples)


def score_memory(config: ModelConfig, order: Order, samples: int) -> Ledger:
    """Plain training, whose weights are the scores, beside the random weights and their masked form."""
    settings = ScoreSettings.model_validate(order.settings)
    base = submodel_memory(config, plain(order), samples)
    masked = _masked_count(config, order)
    largest = max(map(math.prod, masked_shapes(config, order.spec).values()), default=0)
    states = STATE_BYTES[settings.score_optimizer] - STATE_BYTES[settings.optimizer]
    return replace(
        base,
        weights=base.weights + 2 * FLOAT * masked,
        optimizer=base.optimizer + states * masked,
        activations=base.activations + 4 * FLOAT * largest,  # the draw, and what its backward makes for a moment
    )


def check_mask(config: ModelConfig, order: Order, update: Update, max_rms: float) -> None:
    check_bits(update, masked_shapes(config, update.spec))


@register(
    "fedpm", work=score_work, memory=score_memory, answer=dense_answer, upload=mask_upload, check=check_mask
)  # fmt: skip
def train_scores(config: ModelConfig, task: Task, shard: Shard, memory: Memory) -> tuple[Update, Memory]:
    settings, order = ScoreSettings.model_validate(task.order.settings), task.order
    rng = torch_rng(order.seed, "device", order.client, order.attempt)
    frozen = random_weights(config, order.spec, order.seed, settings.gain)
    scores = {name: to_scores(task.weights[name]).requires_grad_() for name in frozen}
    dense = {name: t.clone() for name, t in task.weights.items() if name not in frozen}
    model = submodel(config, task, order.spec, {**dense, **frozen}, settings.rescale)
    model.train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    losses = _train(model, scores, frozen, shard, settings, order, rng)
    delta = {name: task.weights[name] - dense[name].detach() for name in dense}
    masks = {name: torch.rand(s.shape, generator=rng) < s.detach().sigmoid() for name, s in scores.items()}
    model.load({**dense, **{name: frozen[name] * masks[name] for name in frozen}})
    last = losses[-max(1, len(losses) // settings.epochs) :]
    kept = sum(int(m.sum()) for m in masks.values()) / max(1, sum(m.numel() for m in masks.values()))
    report = {"loss": sum(last) / len(last), "kept": kept, **local_scores(config, task, model, shard, settings)}
    extras = {"mask": pack_bits(masks)}
    update = Update(order.client, order.task, order.version, order.spec, delta, len(shard.train), report, extras)
    return update, memory


def _train(
    model: ElasticTransformer,
    scores: Mapping[str, Tensor],
    frozen: Weights,
    shard: Shard,
    settings: ScoreSettings,
    order: Order,
    rng: torch.Generator,
) -> list[float]:
    """E epochs on scores and dense tensors, in place; the loss of every step."""
    dense = [p for p in model.parameters() if p.requires_grad]
    steppers = [make_optimizer(settings.optimizer, dense, order.lr, settings.weight_decay)]
    if scores:  # the smallest devices may hold no segment at all
        rate = order.lr * settings.score_lr_factor
        steppers.append(make_optimizer(settings.score_optimizer, list(scores.values()), rate))
    losses: list[float] = []
    for rows in shuffled(len(shard.train), settings.batch, settings.epochs, rng, shard.train.widths):
        inputs, labels = shard.train.batch(rows, shard.normalize)
        for stepper in steppers:
            stepper.zero_grad(set_to_none=True)
        masked = {name: draw(score, frozen[name], rng, settings.ste) for name, score in scores.items()}
        loss = exits_loss(functional_call(model, masked, (inputs,)), labels, lambda2=0.0)
        del masked
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            raise TrainingError(f"the loss became {losses[-1]}; lower training.lr (now {order.lr:g})")
        loss.backward()
        for stepper in steppers:
            stepper.step()
    return losses
