"""What trains, on its way: in 32 bits, or in 16 or 8 (`training.wire`), for every method alike.

    16 bits   a matrix as float16, times a power of two of its own
    8 bits    a matrix row by row with a scale each; one with short rows in 16 bits

Vectors (norms, biases, and what methods have next to the model) stay in 32: they are some hundredths of the bytes, and
small errors of theirs move whole features.

Weights are rounded to the nearest. What a device then trains and subtracts from is what it received, so the
rounding of one download is in no update and does not add up over rounds: the server's model stays in 32 bits.
Updates in 8 bits are rounded up or down at random, in proportion: their mean over devices and rounds is the true one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from cos2p.messages import Order, Precision, Update
from cos2p.messages.forms import Forms, TensorForm
from cos2p.models.layout import Weights
from cos2p.seeding import torch_rng
from cos2p.training.prefix import SCALE, decode

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
    """What a device has of weights that the server sends."""
    return unpacked(packed(tensors, precision))


def as_it_travels(update: Update, order: Order) -> Update:
    """The last step before an update becomes bytes."""
    if order.wire.up == "float32":
        return update
    rng = torch_rng(order.seed, "wire", order.client, order.attempt)
    return replace(update, delta=packed(dict(sorted(update.delta.items())), order.wire.up, rng))


def packed_forms(shapes: Shapes, precision: Precision) -> Forms:
    """What tensors of these shapes become, for the update reader."""
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
    """Of the codes; None: it travels as it is."""
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
