"""Local trainers by name: what a device does with a task. `submodel` is Co-S²P's, and any plain submodel training.

features ← frozen prefix, once
masks    ← train importances on the candidates, keep the best          (if the task has quotas)
weights  ← E epochs over exits, the deepest teaching the others
scores   ← the personal submodel on the local test part
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cos2p.data.examples import Examples
from cos2p.errors import ConfigError, TrainingError
from cos2p.messages import Order, Task, Update
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.models.transformer import ElasticTransformer
from cos2p.seeding import torch_rng
from cos2p.submodel.budget import Ledger
from cos2p.submodel.slicing import compact_shapes, extract, narrow
from cos2p.submodel.spec import SubmodelSpec
from cos2p.training.costs import Work, prefix_samples, submodel_memory, submodel_work, update_bytes
from cos2p.training.distillation import exits_loss
from cos2p.training.evaluation import evaluate
from cos2p.training.label_skew import with_own_shares
from cos2p.training.masks import MaskTrainer, Memory, MicroBatch, Trained, choose
from cos2p.training.observers import Observer
from cos2p.training.optimizers import make_optimizer
from cos2p.training.prefix import Features, FreshFeatures, PrefixFile, TextFeatures, features_at, prefix_features
from cos2p.training.settings import LocalSettings
from cos2p.training.shard import Shard, shuffled

Train = Callable[[ModelConfig, Task, Shard, Memory], tuple[Update, Memory]]
WorkOf = Callable[[ModelConfig, Order, int, int], Work]
MemoryOf = Callable[[ModelConfig, Order, int], Ledger]
Sent = Callable[[Weights, ModelConfig, Order], Weights]
Answer = Callable[[ModelConfig, Order, SubmodelSpec], Mapping[str, tuple[int, ...]]]
Upload = Callable[[ModelConfig, Order], int]
Check = Callable[[ModelConfig, Order, Update, float], None]


def sent_submodel(weights: Weights, config: ModelConfig, order: Order) -> Weights:
    return extract(weights, config, order.spec)


def submodel_answer(config: ModelConfig, order: Order, spec: SubmodelSpec) -> Mapping[str, tuple[int, ...]]:
    return compact_shapes(config, spec)


def nothing_beside(config: ModelConfig, order: Order, update: Update, max_rms: float) -> None:
    """What an update carries beside its delta is not looked at: nothing reads it."""


@dataclass(frozen=True)
class Trainer:
    """A way to train, with what it costs and what travels."""

    train: Train
    work: WorkOf = submodel_work
    """FLOPs of a task, from its order, the device's training samples and its test samples."""
    memory: MemoryOf = submodel_memory
    """Bytes of a task's worst moment, from its order and the device's training samples."""
    sent: Sent = sent_submodel
    """The trainable tensors a device is given, cut from the full model."""
    answer: Answer = submodel_answer
    """Names and shapes of the update that must come back, from the order and the spec the device says it trained."""
    upload: Upload = update_bytes
    """Bytes of what comes back, for the clock."""
    check: Check = nothing_beside
    """Raises UpdateRefused if what an update carries beside its delta cannot be read or is larger than `max_rms`."""


TRAINERS: dict[str, Trainer] = {}


def register(
    name: str,
    work: WorkOf = submodel_work,
    memory: MemoryOf = submodel_memory,
    sent: Sent = sent_submodel,
    answer: Answer = submodel_answer,
    upload: Upload = update_bytes,
    check: Check = nothing_beside,
) -> Callable[[Train], Train]:
    """Make a function known as the local trainer `name`; all else defaults to what plain submodel training does."""

    def add(train: Train) -> Train:
        TRAINERS[name] = Trainer(train, work, memory, sent, answer, upload, check)
        return train

    return add


def trainer(name: str) -> Trainer:
    if name not in TRAINERS:
        from cos2p.methods import methods  # a method's module brings its trainers along

        methods()
    if name not in TRAINERS:
        raise ConfigError(f"unknown trainer {name!r}; known: {', '.join(sorted(TRAINERS))}")
    return TRAINERS[name]


def run_task(config: ModelConfig, task: Task, shard: Shard, memory: Memory) -> tuple[Update, Memory]:
    """Do the task. Returns the update and what the device remembers now; the memory given is not changed."""
    if task.order.label_skew == "corrected":
        task = with_own_shares(config, task, shard.train.labels)
    shard = shard.for_task(task.order.seed, task.order.client, task.order.attempt)
    return trainer(task.order.trainer).train(config, task, shard, dict(memory))


@register("submodel")
def train_submodel(config: ModelConfig, task: Task, shard: Shard, memory: Memory) -> tuple[Update, Memory]:
    settings = LocalSettings.model_validate(task.order.settings)
    rng = torch_rng(task.order.seed, "device", task.order.client, task.order.attempt)
    features = shard_features(config, task, shard, shard.train, settings)
    spec, weights = task.order.spec, task.weights
    report: dict[str, float] = {"prefix_recomputed": 1} if isinstance(features, FreshFeatures) else {}
    if task.order.quotas is not None:
        report["mask_loss"] = _train_masks(config, task, shard, memory, settings, features, rng)
        spec = choose(memory, config, task.order.spec, task.order.quotas, rng, settings.mask.final)
        weights = narrow(weights, config, task.order.spec, spec)
    model, delta, report["loss"] = train_weights(config, task, spec, weights, shard, settings, features, rng)
    report |= local_scores(config, task, model, shard, settings)
    update = Update(task.order.client, task.order.task, task.order.version, spec, delta, len(shard.train), report)
    return update, memory


def shard_features(
    config: ModelConfig, task: Task, shard: Shard, part: Examples, settings: LocalSettings
) -> Features | None:
    """The part's features behind the frozen prefix; None if nothing is frozen or the part is empty."""
    if task.order.spec.frozen == 0 or len(part) == 0:
        return None
    if part.augments:
        return FreshFeatures(lambda inputs: _behind_prefix(config, task, inputs))
    order = None if part.widths is None else part.widths.argsort(stable=True)  # texts of like width together
    passed = part if order is None else part.subset(order)
    features = prefix_features(
        config,
        task.order.spec,
        PrefixFile(task.prefix),
        lambda rows: shard.inputs(passed, rows),
        len(part),
        prefix_samples(config, task.order, len(part)),
        settings.features,
        settings.feature_precision,
        passed.widths,
    )
    return features.in_order(order.argsort()) if isinstance(features, TextFeatures) and order is not None else features


def _behind_prefix(config: ModelConfig, task: Task, inputs: Tensor) -> Tensor:
    count = len(inputs)
    prefix = PrefixFile(task.prefix)
    return prefix_features(config, task.order.spec, prefix, lambda rows: inputs[rows], count, count)[:]


def submodel(
    config: ModelConfig, task: Task, spec: SubmodelSpec, weights: Weights, rescale: bool
) -> ElasticTransformer:
    """The trainable model, with the output table a tied language model needs above a frozen prefix."""
    held = dict(weights)
    if config.task == "language-modeling" and config.tied and spec.frozen:
        held["embed.tokens"] = PrefixFile(task.prefix).part("embed.")["tokens"]
    return ElasticTransformer(config, spec, rescale=rescale).load(held)


def _train_masks(
    config: ModelConfig,
    task: Task,
    shard: Shard,
    memory: Memory,
    settings: LocalSettings,
    features: Features | None,
    rng: torch.Generator,
) -> float:
    assert task.order.quotas is not None
    deepest = replace(task.order.spec, exits=task.order.spec.exits[-1:])  # masks learn from it alone
    model = submodel(config, task, deepest, task.weights, rescale=False)
    phase = settings.mask
    trainer = MaskTrainer(model, memory, task.order.quotas, Trained(phase.heads, phase.units), phase.lambda1, rng)
    micro = phase.micro_batch or settings.batch

    def batches() -> Iterator[list[MicroBatch]]:
        for rows in shuffled(len(shard.train), settings.batch, phase.epochs, rng, shard.train.widths):
            yield [
                (inputs, features_at(features, part, inputs), labels)
                for part in rows.split(micro)
                for inputs, labels in [shard.train.batch(part, shard.normalize)]
            ]

    return trainer.train(batches(), phase.lr, phase.optimizer)


def train_weights(
    config: ModelConfig,
    task: Task,
    spec: SubmodelSpec,
    weights: Weights,
    shard: Shard,
    settings: LocalSettings,
    features: Features | None,
    rng: torch.Generator,
    observer: Observer | None = None,
) -> tuple[ElasticTransformer, Weights, float]:
    """E epochs on the compact submodel. Returns it, w_start − w_end, and the mean loss of the last epoch.

    The `observer` sees the model once at the start, and with its gradients before and after every step.
    """
    trained = {name: tensor.clone() for name, tensor in weights.items()}  # the task itself stays as it came
    model = submodel(config, task, spec, trained, settings.rescale)
    model.train()
    if observer is not None:
        observer.begin(model)
    trainable = [p for p in model.parameters() if p.requires_grad]
    stepper = make_optimizer(settings.optimizer, trainable, task.order.lr, settings.weight_decay)
    losses: list[float] = []
    for rows in shuffled(len(shard.train), settings.batch, settings.epochs, rng, shard.train.widths):
        inputs, labels = shard.train.batch(rows, shard.normalize)
        stepper.zero_grad(set_to_none=True)  # before the pass, so that old gradients are not part of its peak
        loss = exits_loss(
            model(inputs, features_at(features, rows, inputs)),
            labels,
            settings.lambda2,
            settings.temperature,
            settings.direction,
        )
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            raise TrainingError(f"the loss became {losses[-1]}; lower training.lr (now {task.order.lr:g})")
        loss.backward()
        if observer is not None:
            observer.before_step(model)
        stepper.step()
        if observer is not None:
            observer.after_step(model)
    end = model.weights()
    delta = {name: tensor - end[name] for name, tensor in weights.items()}
    last = losses[-max(1, len(losses) // settings.epochs) :]
    return model, delta, sum(last) / len(last)


def local_scores(
    config: ModelConfig, task: Task, model: ElasticTransformer, shard: Shard, settings: LocalSettings
) -> dict[str, float]:
    """The personal submodel as it was trained (rescaled, if so), deepest exit, on the local test part.

    The factors of the rescaling become part of the model's weights, so the update must have been taken before.
    """
    if len(shard.test) == 0:
        return {"local_samples": 0}
    model.fold_rescale()
    features = shard_features(config, task, shard, shard.test, settings)
    scores = evaluate(model, shard.test, shard.normalize, features, settings.batch)[-1]
    return {"local_samples": len(shard.test)} | {f"local_{name}": value for name, value in scores.items()}
