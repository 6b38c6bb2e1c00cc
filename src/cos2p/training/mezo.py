"""Zeroth-order training (MeZO, Malladi et al. 2023; its Algorithm 1): two forward passes a step, no backward.

    z ~ N(0, I) from a seed of the step's own
    g = (ℓ(w + εz) − ℓ(w − εz)) / 2ε
    w ← w − η·(g·z + λw)                                    λ not for biases and norms

The weights are moved in place (+εz, −2εz, and back together with the step), and z is drawn again from its seed each
time, one tensor at a time: beside the weights a device holds one z and the activations of one block. Moving back and
forth rounds in the last bits, about 1e-7 of a weight a step.

A step is known from its seed and η·g alone, so an update can travel as 12 bytes a step (`wire = "seeds"`, the idea of
FedKSeed and DeComFL): the server draws the same z and adds the steps up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from cos2p.errors import TrainingError, UpdateRefused
from cos2p.messages import Order, Task, Update
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.models.transformer import ElasticTransformer
from cos2p.seeding import torch_rng
from cos2p.submodel.budget import Ledger
from cos2p.submodel.flops import block_forward, embedding_forward, exit_forward
from cos2p.submodel.shape import Shape, trainable_scalars
from cos2p.submodel.slicing import compact_shapes
from cos2p.submodel.spec import SubmodelSpec
from cos2p.submodel.tape import FLOAT, BlockTape, embedding_ops
from cos2p.training.costs import Work, update_bytes, workload
from cos2p.training.distillation import exits_loss
from cos2p.training.masks import Memory
from cos2p.training.settings import LocalSettings
from cos2p.training.shard import Shard, shuffled
from cos2p.training.trainers import local_scores, register, submodel

Wire = Literal["tensors", "seeds"]

STEP_BYTES = 12
"""On the wire a step is its seed (8 bytes) and η·g (4 bytes)."""


class MezoSettings(LocalSettings):
    """`optimizer` and `epochs` do not matter here: plain steps, as many as `steps` says."""

    steps: int = Field(default=30, ge=1, description="Steps of a task.")
    epsilon: float = Field(default=1e-3, gt=0, description="ε: how far the two looks are apart.")
    wire: Wire = Field(default="tensors", description="`tensors`: the update itself; `seeds`: 12 bytes a step.")


def move(tensors: Mapping[str, Tensor], seed: int, scale: float, decay: float = 0.0, undo: float = 0.0) -> None:
    """x ← (1 − decay)·(x + undo·z) + scale·z in place, with the seed's z.

    Tensors are taken in the order of their names, so that whoever has the same shapes draws the same z.
    """
    rng: torch.Generator | None = None
    for name in sorted(tensors):
        x = tensors[name]
        if rng is None:
            rng = torch.Generator(x.device).manual_seed(seed)
        keep = 1.0 - decay if decays(name) else 1.0
        if keep != 1.0:
            x.mul_(keep)
        x.add_(torch.randn(x.shape, generator=rng, device=x.device), alpha=keep * undo + scale)


def decays(name: str) -> bool:
    return not (name.endswith(".bias") or "norm" in name)


def two_losses(
    model: ElasticTransformer, inputs: Tensor, labels: Tensor, seed: int, epsilon: float
) -> tuple[float, float]:
    """ℓ(w + εz) and ℓ(w − εz). The weights are left at w − εz."""
    weights = dict(model.named_parameters())
    move(weights, seed, epsilon)
    plus = float(exits_loss(model(inputs), labels, lambda2=0.0))
    move(weights, seed, -2 * epsilon)
    return plus, float(exits_loss(model(inputs), labels, lambda2=0.0))


def step(
    model: ElasticTransformer, inputs: Tensor, labels: Tensor, seed: int, epsilon: float, lr: float, weight_decay: float
) -> tuple[float, float]:
    """One step in place. Returns η·g and the mean of the two losses.

    If that is not finite the batch is skipped: the weights go back to where they were.
    """
    plus, minus = two_losses(model, inputs, labels, seed, epsilon)
    taken, loss = lr * (plus - minus) / (2 * epsilon), (plus + minus) / 2
    weights = dict(model.named_parameters())
    if math.isfinite(taken):
        move(weights, seed, -taken, decay=lr * weight_decay, undo=epsilon)
    else:
        move(weights, seed, epsilon)
    return taken, loss


def replay(
    shapes: Mapping[str, tuple[int, ...]], seeds: Tensor, scales: Tensor, decay: float, start: Weights
) -> Weights:
    """w_start − w_end of a run of steps, from what travelled. `start` is only needed where weights decay."""
    if not decay:
        delta = {name: torch.zeros(shape) for name, shape in shapes.items()}
        for seed, scale in zip(seeds.tolist(), scales.tolist(), strict=True):
            move(delta, seed, scale)
        return delta
    end = {name: start[name].clone() for name in shapes}
    for seed, scale in zip(seeds.tolist(), scales.tolist(), strict=True):
        move(end, seed, -scale, decay)
    return {name: start[name] - end[name] for name in shapes}


# ---------------------------------------------------------------- what it costs and what travels


def forward_flops(config: ModelConfig, shape: Shape, tokens: int) -> float:
    """One sample through an unfrozen submodel."""
    blocks = sum(block_forward(config, size, tokens) for size in shape.window)
    return embedding_forward(config) + blocks + len(shape.exits) * exit_forward(config, tokens)


def mezo_work(config: ModelConfig, order: Order, samples: int, test_samples: int) -> Work:
    """Two forward passes a step, and the test of the personal submodel."""
    settings = MezoSettings.model_validate(order.settings)
    load = workload(settings, samples)
    forward = forward_flops(config, Shape.of(config, order.spec), load.length(config))
    passes = settings.steps * samples / load.steps  # samples seen in all: the last batch of an epoch may be short
    return Work(training=(2 * passes + test_samples) * forward)


def mezo_memory(config: ModelConfig, order: Order, samples: int) -> Ledger:
    """The weights twice, and either one z or the activations of one block; no gradient, no optimiser, no graph."""
    settings = MezoSettings.model_validate(order.settings)
    load = workload(settings, samples)
    shape, tokens = Shape.of(config, order.spec), load.length(config)
    residual = load.batch * tokens * config.dim * FLOAT
    moments = [max(op.forward for op in embedding_ops(config, load.batch, tokens, load.threads))]
    for size in set(shape.window):
        block = BlockTape(config, size, load.batch * tokens)
        scaled = max(block.Q, block.F) if settings.rescale else 0
        moments.append(residual + block.inference() + scaled)
    logits = load.batch * config.outputs * FLOAT * (tokens if config.task == "language-modeling" else 1)
    moments.append(residual + 4 * logits)
    z = FLOAT * max(math.prod(shape) for shape in compact_shapes(config, order.spec).values())
    inputs = load.batch * (config.channels * config.image**2 * FLOAT if config.family == "vit" else tokens * 8)
    weights = 2 * FLOAT * trainable_scalars(config, shape)  # those received stay, for the difference
    return Ledger("weight", "pass", weights=weights, activations=max(*moments, z), inputs=inputs)


def mezo_answer(config: ModelConfig, order: Order, spec: SubmodelSpec) -> Mapping[str, tuple[int, ...]]:
    return {} if order.settings["wire"] == "seeds" else compact_shapes(config, spec)


def mezo_upload(config: ModelConfig, order: Order) -> int:
    settings = MezoSettings.model_validate(order.settings)
    return STEP_BYTES * settings.steps + FLOAT if settings.wire == "seeds" else update_bytes(config, order)


def check_steps(config: ModelConfig, order: Order, update: Update, max_rms: float) -> None:
    """Seeds and scales as the server can replay them. The sum of c·z has a root mean square of about √Σc²."""
    if order.settings["wire"] != "seeds":
        return
    expected = {"seeds": torch.int64, "scales": torch.float32, "decay": torch.float32}
    if {name: tensor.dtype for name, tensor in update.extras.items()} != expected:
        raise UpdateRefused(f"it carries {sorted(update.extras)}; seeds, scales and decay are expected")
    seeds, scales, decay = (update.extras[name] for name in ("seeds", "scales", "decay"))
    if seeds.ndim != 1 or seeds.shape != scales.shape or decay.ndim or len(seeds) > order.settings["steps"]:
        raise UpdateRefused(f"it tells of {tuple(seeds.shape)} steps, the task had {order.settings['steps']}")
    if not (bool(torch.isfinite(scales).all()) and 0.0 <= float(decay) < 1.0):
        raise UpdateRefused("its steps are not finite")
    if float(torch.linalg.vector_norm(scales)) > max_rms:
        raise UpdateRefused(f"its steps add up to more than a root mean square of {max_rms:.3g}")


@register("mezo", work=mezo_work, memory=mezo_memory, answer=mezo_answer, upload=mezo_upload, check=check_steps)
@torch.no_grad()
def train_mezo(config: ModelConfig, task: Task, shard: Shard, memory: Memory) -> tuple[Update, Memory]:
    settings, order = MezoSettings.model_validate(task.order.settings), task.order
    rng = torch_rng(order.seed, "device", order.client, order.attempt)
    model = submodel(config, task, order.spec, {n: t.clone() for n, t in task.weights.items()}, settings.rescale)
    model.requires_grad_(False).train()  # nothing here behaves differently in training but the rescaling
    losses: list[float] = []
    steps: list[tuple[int, float]] = []
    batches = shuffled(len(shard.train), settings.batch, settings.steps, rng, shard.train.widths)
    for rows in islice(batches, settings.steps):
        inputs, labels = shard.train.batch(rows, shard.normalize)
        seed = int(torch.randint(2**62, (), generator=rng))
        taken, loss = step(model, inputs, labels, seed, settings.epsilon, order.lr, settings.weight_decay)
        if math.isfinite(taken):
            steps.append((seed, taken))
            losses.append(loss)
    if not steps:
        raise TrainingError(
            f"no step had a finite loss; lower training.lr (now {order.lr:g} after the method's factor)"
        )
    report = {"loss": sum(losses) / len(losses), "steps": float(len(steps))}
    delta: Weights = {}
    extras: Weights = {}
    if settings.wire == "tensors":
        delta = {name: task.weights[name] - parameter for name, parameter in model.named_parameters()}
    else:
        extras = {
            "seeds": torch.tensor([seed for seed, _ in steps], dtype=torch.int64),
            "scales": torch.tensor([taken for _, taken in steps], dtype=torch.float32),
            "decay": torch.tensor(order.lr * settings.weight_decay, dtype=torch.float32),
        }
    report |= local_scores(config, task, model, shard, settings)
    update = Update(order.client, order.task, order.version, order.spec, delta, len(shard.train), report, extras)
    return update, memory
