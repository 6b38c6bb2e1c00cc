"""Plain submodel training with an observer: what the trainers of several methods are made of.

The settings of such a trainer hold the plain ones as `local`, beside their own.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from cos2p.costs.ledger import Ledger
from cos2p.errors import UpdateRefused
from cos2p.messages import Order, Task, Update
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.seeding import torch_rng
from cos2p.submodel.rates import segment_costs
from cos2p.training.costs import TaskFlops, submodel_memory, submodel_work, trained_shape, update_bytes
from cos2p.training.observers import Observer
from cos2p.training.settings import LocalSettings
from cos2p.training.shard import Shard, steps
from cos2p.training.trainers import local_scores, shard_features, train_weights


def as_submodel_order(order: Order) -> Order:
    """The order as the trainer `submodel` would get it."""
    return replace(order, settings=order.settings["local"])


def train_observed(config: ModelConfig, task: Task, shard: Shard, observer: Observer) -> Update:
    """The same steps, in the same order, as the trainer `submodel` without masks; `observer` sees each of them."""
    task = replace(task, order=as_submodel_order(task.order))
    order, settings = task.order, LocalSettings.model_validate(task.order.settings)
    rng = torch_rng(order.seed, "device", order.client, order.attempt)
    features = shard_features(config, task, shard, shard.train, settings)
    model, delta, loss = train_weights(config, task, order.spec, task.weights, shard, settings, features, rng, observer)
    report = {"loss": loss} | local_scores(config, task, model, shard, settings)
    return Update(order.client, order.task, order.version, order.spec, delta, len(shard.train), report)


def with_extras(update: Update, extras: Weights) -> Update:
    return replace(update, extras=extras)


def prunable_scalars(config: ModelConfig, order: Order) -> int:
    """Scalars of the heads and units that a task trains."""
    head, unit = segment_costs(config)
    return sum(head * size.heads + unit * size.units for size in trained_shape(config, order).window)


def segments(config: ModelConfig, order: Order) -> int:
    """Heads and units that a task trains."""
    return sum(size.heads + size.units for size in trained_shape(config, order).window)


def observed_work(config: ModelConfig, order: Order, samples: int, test_samples: int, per_scalar: float) -> TaskFlops:
    """Plain training, and `per_scalar` FLOPs for every scalar of a head or unit in every step."""
    order = as_submodel_order(order)
    settings = LocalSettings.model_validate(order.settings)
    work = submodel_work(config, order, samples, test_samples)
    watching = per_scalar * prunable_scalars(config, order) * steps(samples, settings.batch, settings.epochs)
    return replace(work, training=work.training + watching)


def observed_memory(config: ModelConfig, order: Order, samples: int, extra: int) -> Ledger:
    """Plain training, with `extra` bytes held all the time."""
    ledger = submodel_memory(config, as_submodel_order(order), samples)
    return replace(ledger, overhead=ledger.overhead + extra)


def check_statistics(config: ModelConfig, order: Order, update: Update, max_rms: float) -> None:
    """Refuse an update whose `heads.3`, `units.3`, ... are not a number above or at 0 for each held segment."""
    for name, values in update.extras.items():
        kind, _, block = name.partition(".")
        if kind not in ("heads", "units") or not block.isdecimal() or int(block) >= len(update.spec.window):
            raise UpdateRefused(f"it reports on {name!r}, which no block has")
        keep = update.spec.keep(int(block))
        held = len(keep.heads if kind == "heads" else keep.units)
        if values.dtype != torch.float32 or values.shape != (held,):
            raise UpdateRefused(f"its report on {name} is {tuple(values.shape)} {values.dtype}; {held} floats are due")
        if not bool((torch.isfinite(values) & (values >= 0)).all()):
            raise UpdateRefused(f"its report on {name} has values that are negative or not finite")


def upload_with_statistics(config: ModelConfig, order: Order) -> int:
    """The update, and one number for each head and unit in it."""
    return update_bytes(config, order) + 4 * segments(config, order)
