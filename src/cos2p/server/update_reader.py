"""From bytes to an update that answers its task. Nothing is made of the bytes that the task does not ask for.

    the size                        what the task's tensors take, and a header
    the header                      bounded in length, values, depth and digits
    client, task, version           those of the task
    samples, submodel, report       bounded and of their types
    names, types, shapes            those that the contract says must come back for this submodel
    the tensors                     only now

Whatever is wrong is an `UpdateRefused` that says what. Values are looked at last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from cos2p.errors import Cos2pError, SpecError, UpdateRefused
from cos2p.messages import Order, Update
from cos2p.messages.envelope import Buffer, Envelope, Forms, check_forms, check_values
from cos2p.models.config import ModelConfig
from cos2p.models.spec import SubmodelSpec
from cos2p.training.contract import MOST_REPORTED, TaskContract, packed_bytes, packed_forms, unpacked

REPORT_FIGURES = 64
NAME_CHARACTERS = 80

_PER_TENSOR = 128 + NAME_CHARACTERS
"""Bytes of a header for one tensor: its name, and brackets, type, shape and offsets."""
_VALUES_PER_TENSOR = 16
_REPORT_BYTES = 2 * REPORT_FIGURES * (NAME_CHARACTERS + 40)
"""Twice: what is quoted inside a header needs a backslash before each quotation mark."""


@dataclass(frozen=True)
class UpdateReader:
    """Reads answers to one order."""

    order: Order
    config: ModelConfig
    contract: TaskContract
    max_samples: float = math.inf
    max_rms: float = math.inf
    """Largest root mean square of an update, and largest change of any one scalar."""

    def open(self, data: Buffer) -> Envelope:
        """Size and header; UpdateRefused if they cannot be those of an answer."""
        shapes, extras = self.contract.answer(self.order.spec), self.contract.extra_tensors(self.order.spec)
        plain = self.order.wire.up == "float32"
        count, size = len(shapes if plain else self._answer(self.order.spec)), packed_bytes(shapes, self.order.wire.up)
        count, size = count + len(extras), size + sum(form.bytes for form in extras.values())
        spec = self._spec_bytes()
        header = 2**12 + _PER_TENSOR * count + 2 * spec + _REPORT_BYTES
        if len(data) > size + header:
            raise UpdateRefused(f"not an update: {len(data)} bytes; an answer to this task has at most {size + header}")
        values = 2**8 + _VALUES_PER_TENSOR * count + 8 * self.config.depth + 2 * REPORT_FIGURES
        try:
            envelope = Envelope.open(data, header, values)
            envelope.check_parts("d", "x")
        except ValueError as error:
            raise UpdateRefused(f"not an update: {error}") from None
        return envelope

    def read(self, envelope: Envelope) -> tuple[Update, float]:
        """The update, every number of it checked, and its root mean square."""
        meta = envelope.meta
        for name, kind in _FIELDS.items():
            if type(meta.get(name)) is not kind:
                raise UpdateRefused(f"not an update: its {name} is missing or no {kind.__name__}")
        try:
            spec = SubmodelSpec.from_dict(meta["spec"], self.config)
        except SpecError as error:
            raise UpdateRefused(f"not an update: {error}") from None
        check_identity(meta["client"], meta["task"], meta["version"], self.order)
        check_spec(spec, self.order, self.config)
        check_forms(self._forms(spec), envelope.table.found)
        delta = envelope.part("d")
        update = Update(
            client=self.order.client,
            task=self.order.task,
            version=self.order.version,
            spec=spec,
            delta=delta if self.order.wire.up == "float32" else unpacked(delta),
            samples=meta["samples"],
            report=kept_report(meta["report"], self.contract),
            extras=envelope.part("x"),
        )
        return update, self._check_numbers(update)

    def _check_numbers(self, update: Update) -> float:
        """The update's root mean square."""
        if not 1 <= update.samples <= self.max_samples:
            raise UpdateRefused(
                f"it says it was trained on {update.samples} samples; 1 to {self.max_samples} are possible"
            )
        size = root_mean_square(update.delta)
        if not math.isfinite(size):
            broken = next(name for name, tensor in update.delta.items() if not bool(torch.isfinite(tensor).all()))
            raise UpdateRefused(f"{broken} has values that are not finite")
        check_size(update.delta, size, self.max_rms)
        check_values(self.contract.extra_tensors(update.spec), update.extras)
        self.contract.check(update, self.max_rms)
        return size

    def _forms(self, spec: SubmodelSpec) -> Forms:
        """As the message names its tensors."""
        answer = {f"d/{name}": form for name, form in self._answer(spec).items()}
        return answer | {f"x/{name}": form for name, form in self.contract.extra_tensors(spec).items()}

    def _answer(self, spec: SubmodelSpec) -> Forms:
        return packed_forms(self.contract.answer(spec), self.order.wire.up)

    def _spec_bytes(self) -> int:
        """Bits of all heads, units and rows of the model, as hexadecimal digits."""
        config = self.config
        return (config.depth * (config.groups + config.mlp + 64) + config.vocab) // 4


_FIELDS: Mapping[str, type] = {
    "client": str, "task": str, "version": int, "spec": dict, "samples": int, "report": dict,
}  # fmt: skip


def kept_report(report: Mapping[str, Any], contract: TaskContract) -> dict[str, float]:
    """A device's figures, as far as they are finite numbers between their bounds under a short name.

    What is not is left out: a loss may well be not a number on an honest device, and no figure moves the model.
    """
    if len(report) > REPORT_FIGURES:
        raise UpdateRefused(f"it reports {len(report)} figures; at most {REPORT_FIGURES} are read")
    return {name: value for name, value in report.items() if _is_figure(name, value, contract)}


def _is_figure(name: Any, value: Any, contract: TaskContract) -> bool:
    if not isinstance(name, str) or len(name) > NAME_CHARACTERS or not name.isprintable():
        return False
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    low, high = contract.reported.get(name, (-MOST_REPORTED, MOST_REPORTED))
    return low <= value <= high  # false for what is not a number


def check_size(delta: Mapping[str, Tensor], rms: float, most: float) -> None:
    """UpdateRefused if the root mean square of an update, or the change of any one scalar, is more than `most`.

    Were the mean bounded alone, a single weight of a large model could move by thousands of times as much.
    """
    if rms > most:
        raise UpdateRefused(f"its root mean square is {rms:.3g}; at most {most:.3g} is let in")
    scalars = sum(tensor.numel() for tensor in delta.values())
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
    scalars = sum(tensor.numel() for tensor in tensors.values())
    return math.sqrt(math.fsum(_square_sums(list(tensors.values()))) / max(1, scalars))


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
