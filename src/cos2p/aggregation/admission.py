"""Every update is checked before it may touch the model. What does not pass changes nothing and is told why."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from cos2p.errors import SpecError, UpdateRefused
from cos2p.messages import Order, Update
from cos2p.models.config import ModelConfig
from cos2p.submodel.slicing import check_expected
from cos2p.training.trainer import Trainer


def check_update(
    update: Update,
    order: Order,
    config: ModelConfig,
    trainer: Trainer,
    max_rms: float = math.inf,
    max_samples: float = math.inf,
) -> float:
    """Raise UpdateRefused unless the update answers this very task, completely, with sane numbers.

    The `trainer` is the order's: it says what must come back. `max_rms` bounds the update's root mean square, which is
    returned; `max_samples` what it says it was trained on.
    """
    _check_identity(update, order)
    _check_spec(update, order, config)
    expected = trainer.answer(update.spec)
    missing = sorted(set(expected) - set(update.delta))
    if missing:
        raise UpdateRefused(f"{len(missing)} tensors are missing, {missing[0]} among them")
    try:
        check_expected(update.delta, expected)
    except SpecError as error:
        raise UpdateRefused(str(error)) from None
    for name, tensor in update.delta.items():
        if tensor.dtype != torch.float32:
            raise UpdateRefused(f"{name} is {tensor.dtype}, an update is float32")
    if not 1 <= update.samples <= max_samples:
        raise UpdateRefused(f"it says it was trained on {update.samples} samples; 1 to {max_samples} are possible")
    size = root_mean_square(update.delta)
    if not math.isfinite(size):
        broken = next(name for name, tensor in update.delta.items() if not bool(torch.isfinite(tensor).all()))
        raise UpdateRefused(f"{broken} has values that are not finite")
    if size > max_rms:
        raise UpdateRefused(f"its root mean square is {size:.3g}; at most {max_rms:.3g} is let in")
    trainer.check(update, max_rms)
    return size


def _check_identity(update: Update, order: Order) -> None:
    for what in ("client", "task", "version"):
        got, expected = getattr(update, what), getattr(order, what)
        if got != expected:
            raise UpdateRefused(f"its {what} is {got!r}, the task's is {expected!r}")


def _check_spec(update: Update, order: Order, config: ModelConfig) -> None:
    spec, sent = update.spec, order.spec
    try:
        spec.check(config)
    except SpecError as error:
        raise UpdateRefused(f"its submodel is not one of this model: {error}") from None
    if spec.rows != sent.rows:
        raise UpdateRefused("its rows of the token table are not those of the task")
    if len(spec.window) != len(sent.window) or replace(spec, window=sent.window) != sent:
        raise UpdateRefused("its window or exits are not those of the task")
    if order.quotas is None:
        if spec.window != sent.window:
            raise UpdateRefused("its heads or units are not those of the task")
        return
    for block, kept, offered, quota in zip(
        range(spec.frozen, spec.top), spec.window, sent.window, order.quotas, strict=True
    ):
        if len(kept.heads) > quota.heads or len(kept.units) > quota.units:
            raise UpdateRefused(
                f"block {block}: {len(kept.heads)} heads and {len(kept.units)} units kept, "
                f"{quota.heads} and {quota.units} allowed"
            )
        if not (set(kept.heads) <= set(offered.heads) and set(kept.units) <= set(offered.units)):
            raise UpdateRefused(f"block {block}: it keeps segments that were not offered")


def root_mean_square(tensors: Mapping[str, Tensor]) -> float:
    """Over all scalars; not finite exactly if one of them is not. One pass, without a copy in double precision."""
    count = sum(tensor.numel() for tensor in tensors.values())
    return math.sqrt(math.fsum(map(_square_sum, tensors.values())) / max(1, count))


def _square_sum(tensor: Tensor) -> float:
    norm = float(torch.linalg.vector_norm(tensor))
    if math.isinf(norm):  # the squares of numbers above 1e19 leave single precision; they may be finite themselves
        norm = float(torch.linalg.vector_norm(tensor.double()))
    return norm * norm
