"""`TaskContract`: what a task sends, what must come back, what it costs and how an update of it is checked.

It is computed from an order alone, on the server before anything is allocated and on the device as well. The device's
loop is the `Trainer`, which names its contract in `contract_type`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from cos2p.costs.ledger import Ledger, prefix_batch
from cos2p.costs.shape import Shape
from cos2p.messages import Order, Piece, Precision, Update
from cos2p.messages.envelope import Forms, TensorForm
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.models.spec import SubmodelSpec
from cos2p.seeding import torch_rng
from cos2p.submodel.slicing import (
    Slice,
    compact_shape,
    frozen_names,
    frozen_slices,
    take,
    trained_shapes,
    window_slices,
)
from cos2p.training.costs import (
    TaskFlops,
    submodel_flops,
    submodel_memory,
    trained_shape,
    trained_spec,
    update_bytes,
    workload,
)
from cos2p.training.prefix import SCALE, decode, encode
from cos2p.training.settings import ExtendedSettings, LocalSettings, with_local
from cos2p.training.shard import steps

MOST_REPORTED = 1e9
"""No figure of a report is larger, up or down."""

FrozenParts = Mapping[str, tuple[str, Slice | None]]
"""By the name under which a tensor travels: its name in the model, and the part of it."""


class TaskContract:
    """The contract of plain training of the submodel that was sent; base of all others."""

    trains: ClassVar[bool] = True
    """False: nothing of the model changes by its tasks; they report statistics of the data."""
    looks: ClassVar[int] = 0
    """Batches that its trainer looks at in `begin`, before the first step."""
    reported: ClassVar[Mapping[str, tuple[float, float]]] = {
        "local_samples": (0, MOST_REPORTED),
        "local_top1": (0, 1),
        "local_top5": (0, 1),
        "local_f1": (0, 1),
    }
    """Figures of a report that must lie between two numbers; any other is a number of at most `MOST_REPORTED`."""

    settings: LocalSettings | ExtendedSettings

    def __init__(self, config: ModelConfig, order: Order, settings: LocalSettings | ExtendedSettings) -> None:
        """`settings` are the order's, without memory optimizations that its trainer does not support."""
        self.config, self.order, self.settings = config, order, settings

    @property
    def local(self) -> LocalSettings:
        """Epochs, batch and the like."""
        return self.settings if isinstance(self.settings, LocalSettings) else self.settings.local

    def with_tokens(self, tokens: int) -> Self:
        """The same task, if no text were longer than this."""
        settings = with_local(self.settings, {}, texts=(0, 0))
        return type(self)(self.config.with_(max_tokens=tokens), self.order, settings)

    # ------------------------------------------------------------ what travels

    def sent(self, weights: Weights) -> Weights:
        """The trainable tensors the device is given, cut from the full model; not to be changed, since those that are
        not cut are the model's own."""
        slices = window_slices(self.config, self.order.spec)
        return {n: weights[n] if cut is None else weights[n].index_select(*cut) for n, cut in slices.items()}

    def frozen(self) -> FrozenParts:
        """The tensors the device is given to run but not to train."""
        slices = frozen_slices(self.config, self.order.spec)
        return {sent: (name, slices[name]) for sent, name in frozen_names(self.config, self.order.spec).items()}

    def sent_frozen(self, weights: Weights) -> Weights:
        """Copies of them, encoded for the wire."""
        encoded: Weights = {}
        for sent, (name, cut) in self.frozen().items():
            encoded |= encode({sent: take(weights, {name: cut})[name]}, self.order.prefix_precision)
        return encoded

    def frozen_pieces(self, weights: Weights, held: tuple[str, ...] = ()) -> dict[str, Piece]:
        """The same, each tensor to be made when it is written, but for names that begin with one of those `held` by the
        device."""
        pieces, precision = {}, self.order.prefix_precision
        for sent, (name, cut) in self.frozen().items():
            if sent.startswith(held):
                continue
            likes = encode({sent: torch.empty(compact_shape(self.config, name, cut), device="meta")}, precision)
            for key, like in likes.items():
                pieces[key] = Piece(like, partial(_encoded, weights, sent, name, cut, precision, key))
        return pieces

    def answer(self, spec: SubmodelSpec) -> Mapping[str, tuple[int, ...]]:
        """Names and shapes of the update that must come back, if the device says it trained `spec`."""
        return trained_shapes(self.config, spec)

    def extra_tensors(self, spec: SubmodelSpec) -> Forms:
        """The tensors that come back with the update. The server refuses anything else before it reads it."""
        return {}

    def upload(self) -> int:
        """Bytes of what comes back, if its numbers take 32 bits."""
        return update_bytes(self.config, self.order)

    def wire_upload(self) -> int:
        """The same as it is packed, for the clock."""
        if self.order.wire.up == "float32":
            return self.upload()
        answer = self.answer(trained_spec(self.order))
        return self.upload() - packed_bytes(answer, "float32") + packed_bytes(answer, self.order.wire.up)

    def check(self, update: Update, max_rms: float) -> None:
        """Raise UpdateRefused for what types, shapes and bounds cannot say; all values are finite by then."""

    # ------------------------------------------------------------ what it costs

    def flops(self, samples: int, test_samples: int) -> TaskFlops:
        """FLOPs of the task on a device with so many training and test samples."""
        order, sent = self.order, Shape.of(self.config, self.order.spec)
        known = order.known_features
        base = submodel_flops(self.config, sent, order.quotas, known, self.local, samples, test_samples)
        more = self.step_flops() * steps(samples, self.local.batch, self.local.epochs)
        return replace(base, training=base.training + more) if more else base

    def memory(self, samples: int) -> Ledger:
        """Bytes of the task's worst moment."""
        base = submodel_memory(self.config, self.order, self.local, samples)
        held = self.held_bytes()
        return replace(base, overhead=base.overhead + held) if held else base

    def step_flops(self) -> float:
        """FLOPs of a step beyond those of the training itself."""
        return 0.0

    def held_bytes(self) -> int:
        """Bytes held all the time beyond those of the training itself."""
        return 0

    def prefix_batch(self, samples: int) -> int:
        """Samples at a time through the frozen prefix: as many as take no more memory than the training."""
        return prefix_batch(self.config, trained_shape(self.config, self.order), workload(self.local, samples))


def _encoded(weights: Weights, sent: str, name: str, cut: Slice | None, precision: Any, key: str) -> Tensor:
    return encode({sent: take(weights, {name: cut})[name]}, precision)[key]


# On its way a trainable matrix takes 32 bits, or 16 (float16, times a power of two of its own), or 8 (row by row with a
# scale each; one with short rows in 16). Vectors stay in 32: they are some hundredths of the bytes, and small errors of
# theirs move whole features. Weights are rounded to the nearest: a device subtracts from what it received, so that no
# rounding adds up over rounds. Updates in 8 bits are rounded at random, so that their mean is the true one.

SHORT_ROW = 16
"""A row with fewer entries is not worth a scale of four bytes."""

Shapes = Mapping[str, tuple[int, ...]]


def packed(tensors: Mapping[str, Tensor], precision: Precision, rng: torch.Generator | None = None) -> Weights:
    """As they travel. `rng`: 8 bits are drawn, not rounded to the nearest. `unpacked` is the way back."""
    if precision == "float32":
        return dict(tensors)
    made: Weights = {}
    for name, tensor in tensors.items():
        kind = _kind(tuple(tensor.shape), precision)
        if kind is None:
            made[name] = tensor
        elif kind == torch.int8:
            made[name], made[name + SCALE] = _by_row(tensor, rng)
        else:
            made[name], made[name + SCALE] = _in_half(tensor)
    return made


def unpacked(tensors: Mapping[str, Tensor]) -> Weights:
    """Back to float32; those in 32 bits are the same tensors."""
    return decode(tensors)


def as_received(tensors: Mapping[str, Tensor], precision: Precision) -> Weights:
    """The weights that the server sends, as a device has them."""
    return unpacked(packed(tensors, precision))


def as_it_travels(update: Update, order: Order) -> Update:
    """The last step before an update becomes bytes."""
    if order.wire.up == "float32":
        return update
    rng = torch_rng(order.seed, "wire", order.client, order.attempt)
    return replace(update, delta=packed(dict(sorted(update.delta.items())), order.wire.up, rng))


def packed_forms(shapes: Shapes, precision: Precision) -> Forms:
    """Forms of packed tensors of these shapes, for the update reader."""
    forms: dict[str, TensorForm] = {}
    for name, shape in shapes.items():
        kind = _kind(tuple(shape), precision)
        forms[name] = TensorForm(tuple(shape), kind or torch.float32)
        if kind is not None:
            forms[name + SCALE] = TensorForm((shape[0],) if kind == torch.int8 else (), low=0.0)
    return forms


def packed_bytes(shapes: Shapes, precision: Precision) -> int:
    if precision == "float32":
        return sum(map(math.prod, shapes.values())) * torch.float32.itemsize
    return sum(form.bytes for form in packed_forms(shapes, precision).values())


def _kind(shape: tuple[int, ...], precision: Precision) -> torch.dtype | None:
    """The type of the codes; None: it travels as it is."""
    if precision == "float32" or len(shape) < 2:
        return None
    return torch.int8 if precision == "int8" and math.prod(shape[1:]) >= SHORT_ROW else torch.float16


def _in_half(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Its largest entry between ½ and 1: far from float16's upper end, its small ones as far from the lower as can be.

    A power of two changes no digit.
    """
    largest = tensor.abs().max() if tensor.numel() else tensor.new_ones(())
    scale = torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent)
    return (tensor / scale).half(), scale


def _by_row(tensor: Tensor, rng: torch.Generator | None) -> tuple[Tensor, Tensor]:
    rows = tensor.flatten(1)
    scale = rows.abs().amax(1).clamp_min(1e-30) / 127
    steps = rows / scale[:, None]
    steps = steps.round_() if rng is None else (steps + torch.rand(steps.shape, generator=rng)).floor_()
    return steps.clamp_(-127, 127).to(torch.int8).view(tensor.shape), scale
