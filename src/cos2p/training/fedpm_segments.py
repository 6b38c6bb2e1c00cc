"""FedPM with one score for each head and unit instead of each weight: the literal structured reading.

The device holds the segments it was dealt, frozen, and trains their scores and the dense tensors; a forward pass keeps
a segment with probability σ(s). One bit for each segment goes back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from cos2p.errors import TrainingError
from cos2p.messages import Order, Task, Update
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.models.transformer import ElasticTransformer, Gates
from cos2p.seeding import torch_rng
from cos2p.submodel.beside import Beside, beside_shapes, take_beside
from cos2p.submodel.budget import Ledger
from cos2p.submodel.slicing import extract
from cos2p.submodel.spec import SubmodelSpec
from cos2p.submodel.tape import FLOAT
from cos2p.training.costs import plain, submodel_memory
from cos2p.training.distillation import exits_loss
from cos2p.training.fedpm import (
    ScoreSettings,
    check_bits,
    dense_answer,
    draw,
    is_masked,
    pack_bits,
    random_weights,
    score_work,
    to_scores,
)
from cos2p.training.masks import Memory
from cos2p.training.optimizers import STATE_BYTES, make_optimizer
from cos2p.training.shard import Shard, shuffled
from cos2p.training.trainers import local_scores, register, submodel

Network = Literal["random", "given"]


class SegmentScoreSettings(ScoreSettings):
    network: Network = Field(
        default="random", description="`random`: made from the seed on the device; `given`: the recipe's first weights."
    )


def segment_table(config: ModelConfig) -> dict[str, Beside]:
    """θ of every head and unit."""
    table: dict[str, Beside] = {}
    for block in range(config.depth):
        table[f"fedpm.{block}.heads"] = Beside((config.groups,), "head", block)
        table[f"fedpm.{block}.units"] = Beside((config.mlp,), "unit", block)
    return table


def segment_shapes(config: ModelConfig, spec: SubmodelSpec) -> dict[str, tuple[int, ...]]:
    return beside_shapes(segment_table(config), config, spec)


def without_dropped(weights: Weights, masks: Mapping[str, Tensor], config: ModelConfig) -> Weights:
    """The (compact or full) weights with the outputs of masked heads and units at zero."""
    width = config.queries_per_group * config.head_dim
    masked = dict(weights)
    for name, mask in masks.items():
        _, block, kind = name.split(".")
        layer = f"blocks.{block}.{'o' if kind == 'heads' else 'fc2'}.weight"
        columns = mask.float().repeat_interleave(width) if kind == "heads" else mask.float()
        masked[layer] = weights[layer] * columns
    return masked


# ---------------------------------------------------------------- what it costs and what travels


def sent_segments(weights: Weights, config: ModelConfig, order: Order) -> Weights:
    """Dense tensors, θ of the segments dealt, and their weights where the device cannot make them itself."""
    sent = extract(weights, config, order.spec)
    if order.settings["network"] == "random":
        sent = {name: tensor for name, tensor in sent.items() if not is_masked(config, name)}
    return {**sent, **take_beside(weights, segment_table(config), config, order.spec)}


def segment_upload(config: ModelConfig, order: Order) -> int:
    dense = sum(map(math.prod, dense_answer(config, order, order.spec).values()))
    return FLOAT * dense + -(-sum(map(math.prod, segment_shapes(config, order.spec).values())) // 8)


def segment_memory(config: ModelConfig, order: Order, samples: int) -> Ledger:
    """Plain training without the gradients and the optimiser of what is frozen."""
    settings = SegmentScoreSettings.model_validate(order.settings)
    base = submodel_memory(config, plain(order), samples)
    dense = sum(map(math.prod, dense_answer(config, order, order.spec).values()))
    gates = sum(map(math.prod, segment_shapes(config, order.spec).values()))
    return replace(
        base,
        gradients=FLOAT * (dense + 2 * gates),
        optimizer=STATE_BYTES[settings.optimizer] * dense + STATE_BYTES[settings.score_optimizer] * gates,
    )


def check_segments(config: ModelConfig, order: Order, update: Update, max_rms: float) -> None:
    check_bits(update, segment_shapes(config, update.spec))


@register(
    "fedpm-segments", work=score_work, memory=segment_memory, sent=sent_segments, answer=dense_answer,
    upload=segment_upload, check=check_segments,
)  # fmt: skip
def train_segments(config: ModelConfig, task: Task, shard: Shard, memory: Memory) -> tuple[Update, Memory]:
    settings, order = SegmentScoreSettings.model_validate(task.order.settings), task.order
    rng = torch_rng(order.seed, "device", order.client, order.attempt)
    theta = {name: task.weights[name] for name in segment_shapes(config, order.spec)}
    scores = {name: to_scores(t).requires_grad_() for name, t in theta.items() if t.numel()}
    held = {name: tensor.clone() for name, tensor in task.weights.items() if name not in theta}
    if settings.network == "random":
        held |= random_weights(config, order.spec, order.seed, settings.gain)
    model = submodel(config, task, order.spec, held, settings.rescale)
    model.train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not is_masked(config, name))
    losses = _train(model, scores, shard, settings, order, rng)
    delta = {name: task.weights[name] - tensor for name, tensor in model.weights().items()}
    masks = {
        name: torch.rand(t.shape, generator=rng) < scores[name].detach().sigmoid() if name in scores else t > 0
        for name, t in theta.items()
    }
    model.load(without_dropped(dict(model.state_dict()), masks, config))
    last = losses[-max(1, len(losses) // settings.epochs) :]
    report = {"loss": sum(last) / len(last), **local_scores(config, task, model, shard, settings)}
    extras = {"mask": pack_bits(masks)}
    update = Update(order.client, order.task, order.version, order.spec, delta, len(shard.train), report, extras)
    return update, memory


def _train(
    model: ElasticTransformer,
    scores: Mapping[str, Tensor],
    shard: Shard,
    settings: SegmentScoreSettings,
    order: Order,
    rng: torch.Generator,
) -> list[float]:
    """E epochs on gates and dense tensors, in place; the loss of every step."""
    dense = [p for p in model.parameters() if p.requires_grad]
    steppers = [make_optimizer(settings.optimizer, dense, order.lr, settings.weight_decay)]
    if scores:
        rate = order.lr * settings.score_lr_factor
        steppers.append(make_optimizer(settings.score_optimizer, list(scores.values()), rate))
    losses: list[float] = []
    for rows in shuffled(len(shard.train), settings.batch, settings.epochs, rng, shard.train.widths):
        inputs, labels = shard.train.batch(rows, shard.normalize)
        for stepper in steppers:
            stepper.zero_grad(set_to_none=True)
        drawn = {name: draw(score, torch.ones_like(score), rng, settings.ste) for name, score in scores.items()}
        loss = exits_loss(model(inputs, gates=_by_block(drawn, model.spec)), labels, lambda2=0.0)
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            raise TrainingError(f"the loss became {losses[-1]}; lower training.lr (now {order.lr:g})")
        loss.backward()
        for stepper in steppers:
            stepper.step()
    return losses


def _by_block(drawn: Mapping[str, Tensor], spec: SubmodelSpec) -> Gates:
    return {i: (drawn.get(f"fedpm.{i}.heads"), drawn.get(f"fedpm.{i}.units")) for i in range(spec.top)}
