"""Every update is checked before it may touch the model. What does not pass changes nothing, and its sender learns
why."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from cos2p.errors import Cos2pError, SpecError, UpdateRefused
from cos2p.messages import Order, Update
from cos2p.messages.forms import check_forms, check_values
from cos2p.models.config import ModelConfig
from cos2p.models.flat_tensors import FlatTensors
from cos2p.models.spec import SubmodelSpec
from cos2p.submodel.slicing import check_expected
from cos2p.submodel.square_sums import norms
from cos2p.training.contract import TaskContract


def check_update(
    update: Update,
    order: Order,
    config: ModelConfig,
    contract: TaskContract,
    max_rms: float = math.inf,
    max_samples: float = math.inf,
) -> float:
    """Raise UpdateRefused unless the update answers this very task, completely, with sane numbers.

    The `contract` is the order's: it says what must come back. `max_rms` bounds the update's root mean square, which is
    returned; `max_samples` what it says it was trained on.
    """
    check_identity(update.client, update.task, update.version, order)
    check_spec(update.spec, order, config)
    check_delta(update.delta, contract.answer(update.spec))
    if not 1 <= update.samples <= max_samples:
        raise UpdateRefused(f"it says it was trained on {update.samples} samples; 1 to {max_samples} are possible")
    size = root_mean_square(update.delta)
    if not math.isfinite(size):
        broken = next(name for name, tensor in update.delta.items() if not bool(torch.isfinite(tensor).all()))
        raise UpdateRefused(f"{broken} has values that are not finite")
    check_size(update.delta, size, max_rms)
    found = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in update.extras.items()}
    extras = contract.extra_tensors(update.spec)
    check_forms(extras, found)
    check_values(extras, update.extras)
    contract.check(update, max_rms)
    return size


def check_delta(delta: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]]) -> None:
    """UpdateRefused unless these tensors came, in these shapes and in single precision."""
    if isinstance(delta, FlatTensors) and delta.arranged.is_of(expected):
        return  # of another type it would not be in one piece
    missing = sorted(set(expected) - set(delta))
    if missing:
        raise UpdateRefused(f"{len(missing)} tensors are missing, {missing[0]} among them")
    try:
        check_expected(delta, expected)
    except SpecError as error:
        raise UpdateRefused(str(error)) from None
    for name, tensor in delta.items():
        if tensor.dtype != torch.float32:
            raise UpdateRefused(f"{name} is {tensor.dtype}, an update is float32")


def check_size(delta: Mapping[str, Tensor], rms: float, most: float) -> None:
    """UpdateRefused if the root mean square of an update, or the change of any one scalar, is more than `most`.

    Were the mean bounded alone, a single weight of a large model could move by thousands of times as much.
    """
    if rms > most:
        raise UpdateRefused(f"its root mean square is {rms:.3g}; at most {most:.3g} is let in")
    scalars = _count(delta)
    if rms * math.sqrt(scalars) <= most:
        return  # not even if all of it were in one scalar
    for name, tensor in delta.items():
        low, high = (float(value) for value in torch.aminmax(tensor)) if tensor.numel() else (0.0, 0.0)
        if max(-low, high) > most:
            raise UpdateRefused(f"{name} changes by {max(-low, high):.3g}; at most {most:.3g} is let in")


def check_decoded(delta: Mapping[str, Tensor], most: float) -> None:
    """The same of an update that came in another form, once it is numbers."""
    size = root_mean_square(delta)
    if not math.isfinite(size):
        raise UpdateRefused("what it stands for is not finite")
    check_size(delta, size, most)


def check_finite(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
    """UpdateRefused if the next version has lost a tensor, or has one with values that are not finite."""
    for name, old in before.items():
        new = after.get(name)
        if new is None or new.shape != old.shape:
            raise UpdateRefused(f"{name} is missing in the next version, or has another shape")
        if new is not old and not math.isfinite(_square_sum(new)):
            raise UpdateRefused(f"{name} is not finite in the next version")


def refusal_reason(error: Exception) -> str:
    """As users read it; what is not meant for users is named by its kind."""
    text = str(error) if isinstance(error, Cos2pError) else f"it cannot be merged: {type(error).__name__}: {error}"
    return text if len(text) <= 1000 else f"{text[:1000]} ..."


def check_identity(client: str, task: str, version: int, order: Order) -> None:
    """UpdateRefused unless the answer is to this order."""
    for what, got in (("client", client), ("task", task), ("version", version)):
        expected = getattr(order, what)
        if got != expected:
            shown = repr(got) if len(repr(got)) <= 80 else f"{repr(got)[:80]} ..."
            raise UpdateRefused(f"its {what} is {shown}, the task's is {expected!r}")


def check_spec(spec: SubmodelSpec, order: Order, config: ModelConfig) -> None:
    """UpdateRefused unless a device that was given this order may have trained this submodel."""
    sent = order.spec
    try:
        spec.check(config)
    except SpecError as error:
        raise UpdateRefused(f"its submodel is not one of this model: {error}") from None
    if order.quotas is None and _is_as_sent(spec, sent):
        return
    if spec.rows != sent.rows:
        raise UpdateRefused("its rows of the token table are not those of the task")
    if len(spec.window) != len(sent.window) or replace(spec, window=sent.window) != sent:
        raise UpdateRefused("its window or exits are not those of the task")
    if order.quotas is None:
        raise UpdateRefused("its heads or units are not those of the task")
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


@lru_cache(maxsize=16)
def _is_as_sent(spec: SubmodelSpec, sent: SubmodelSpec) -> bool:
    """Thousands of numbers each, which tasks have in common: compared once."""
    return spec == sent


def root_mean_square(tensors: Mapping[str, Tensor]) -> float:
    """Over all scalars; not finite exactly if one of them is not. One pass, without a copy in double precision."""
    return math.sqrt(math.fsum(_all_square_sums(tensors)) / max(1, _count(tensors)))


def _count(tensors: Mapping[str, Tensor]) -> int:
    return tensors.arranged.values if isinstance(tensors, FlatTensors) else sum(t.numel() for t in tensors.values())


def _all_square_sums(tensors: Mapping[str, Tensor]) -> list[float]:
    """Of each tensor; those of a family at once."""
    if isinstance(tensors, FlatTensors):
        found = norms(tensors).tolist()
        if all(map(math.isfinite, found)):
            return [norm * norm for norm in found]
    return _square_sums(list(tensors.values()))


def _square_sums(tensors: list[Tensor]) -> list[float]:
    if not tensors:
        return []
    found = torch.stack(torch._foreach_norm(tensors)).tolist()
    return [norm * norm if math.isfinite(norm) else _square_sum(t) for norm, t in zip(found, tensors, strict=True)]


def _square_sum(tensor: Tensor) -> float:
    norm = float(torch.linalg.vector_norm(tensor))
    if math.isinf(norm):  # the squares of numbers above 1e19 leave single precision; they may be finite themselves
        norm = float(torch.linalg.vector_norm(tensor.double()))
    return norm * norm
