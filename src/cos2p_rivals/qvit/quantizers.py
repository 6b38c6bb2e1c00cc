"""Learned step size quantisation (LSQ, Esser et al. 2020), as Q-ViT uses it, and its codes on the wire.

    x_q = (round(clamp(x/a + z, low, high)) − z) · a

Rounding passes gradients on; outside the clamp x gets none. The step a and the zero-point z (activations only, in units
of the step, rounded) learn with gradients times 1/√(numel · high). A step is kept as its logarithm: it stays positive,
and Adam and its kin change it in proportion, as LAMB's trust ratio does in the original.

A step that has seen no data yet is exactly `UNSET`; the first batch (for weights: the weights) makes it
2·mean|x|/√high. An average over devices leaves a step that nobody held as it was, so the mark survives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cos2p.methods import Weights

UNSET = -2.0


def levels(bits: int, signed: bool) -> tuple[int, int]:
    """The lowest and the highest code.

    >>> levels(2, signed=True), levels(2, signed=False)
    ((-2, 1), (0, 3))
    """
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)


class _Quantized(torch.autograd.Function):
    """Keeps its input alone; what backward needs is computed again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, step: Tensor, zero: Tensor | None, low: int, high: int) -> Tensor:
        ctx.save_for_backward(x, step, zero)
        ctx.low, ctx.high = low, high
        code = x / step
        if zero is not None:
            code += zero
        code.clamp_(low, high).round_()
        if zero is not None:
            code -= zero
        return code.mul_(step)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, step, zero), grad = ctx.saved_tensors, grads[0]
        scale = 1.0 / math.sqrt(max(1, x.numel()) * ctx.high)
        at = x / step if zero is None else x / step + zero
        inside = (at >= ctx.low) & (at <= ctx.high)
        # Inside the clamp the step's slope is round(v) − v, outside it is the code reached, less the zero-point.
        slope = at.clamp(ctx.low, ctx.high).round_() - torch.where(inside, at, 0.0 if zero is None else zero)
        for_step = (grad * slope).sum_to_size(step.shape) * scale
        for_zero = None
        if zero is not None:
            for_zero = -(grad * step).masked_fill(inside, 0.0).sum_to_size(zero.shape) * scale
        return grad * inside, for_step, for_zero, None, None


def quantized(x: Tensor, step: Tensor, zero: Tensor | None, bits: int, signed: bool) -> Tensor:
    """x on its grid; `step` and `zero` broadcast."""
    return _Quantized.apply(x, step, zero, *levels(bits, signed))  # type: ignore[no-any-return, no-untyped-call]


class Step(nn.Module):
    """Logarithms of step sizes, without values until they are loaded."""

    def __init__(self, entries: int) -> None:
        super().__init__()
        self.step = nn.Parameter(torch.empty(entries, device="meta"))


class WeightStep(Step):
    """One step for each output row of a matrix or kernel."""

    @torch.no_grad()
    def see(self, weight: Tensor, bits: int) -> None:
        """Set what has not been set."""
        self.step.copy_(with_first_steps(self.step, weight, bits))

    def forward(self, weight: Tensor, bits: int) -> Tensor:
        step = self.step.exp().view(-1, *(1,) * (weight.ndim - 1))
        return quantized(weight, step, None, bits, signed=True)

    @torch.no_grad()
    def codes(self, weight: Tensor, bits: int) -> Tensor:
        """From 0 on."""
        return weight_codes(weight, self.step, bits)


class ActStep(Step):
    """One step and one zero-point for each entry of an axis of an activation."""

    def __init__(self, entries: int) -> None:
        super().__init__(entries)
        self.zero = nn.Parameter(torch.empty(entries, device="meta"))
        self.all_set = False
        """Not known yet, or known: to look at every batch would be to wait for it."""

    def forward(self, x: Tensor, bits: int, axis: int, signed: bool = True) -> Tensor:
        if self.training and not self.all_set:
            self.see(x, bits, signed)
        shape = [1] * x.ndim
        shape[axis] = -1
        zero = self.zero + (self.zero.round() - self.zero).detach()
        return quantized(x, self.step.exp().view(shape), zero.view(shape), bits, signed)

    @torch.no_grad()
    def see(self, x: Tensor, bits: int, signed: bool) -> None:
        """Set what has not been set; a batch of zeros sets nothing."""
        unset = self.step == UNSET
        self.all_set = not bool(unset.any())
        if not self.all_set and x.numel():
            size = float(x.abs().mean()) * 2 / math.sqrt(levels(bits, signed)[1])
            if size > 0:
                self.step.masked_fill_(unset, math.log(size))
                self.all_set = True


# ---------------------------------------------------------------- codes


def with_first_steps(log_step: Tensor, weight: Tensor, bits: int) -> Tensor:
    """The steps of a weight's rows, those unset made from the weight; a row of zeros leaves its step unset."""
    if not weight.numel():
        return log_step
    size = 2 * weight.flatten(1).abs().mean(1) / math.sqrt(levels(bits, True)[1])
    return torch.where((log_step == UNSET) & (size > 0), size.log(), log_step)


def weight_codes(weight: Tensor, log_step: Tensor, bits: int) -> Tensor:
    """Codes of a weight, row by row, moved so that the lowest is 0."""
    low, high = levels(bits, True)
    step = log_step.exp().view(-1, *(1,) * (weight.ndim - 1))
    return ((weight / step).clamp(low, high).round() - low).to(torch.uint8)


def on_grid(weight: Tensor, log_step: Tensor, bits: int) -> Tensor:
    """A weight as it is quantised with these steps, or with first ones where they are unset."""
    steps = with_first_steps(log_step, weight, bits)
    return from_codes(weight_codes(weight, steps, bits), steps, bits)


def from_codes(codes: Tensor, log_step: Tensor, bits: int) -> Tensor:
    step = log_step.exp().view(-1, *(1,) * (codes.ndim - 1))
    return (codes.float() + levels(bits, True)[0]) * step


def pack_codes(codes: Mapping[str, Tensor], bits: Mapping[str, int]) -> Tensor:
    """All codes in the order of their names, each with its number of bits, nothing in between."""
    parts = [np.zeros(0, np.uint8)]
    for name in sorted(codes):
        values = codes[name].flatten().cpu().numpy()
        parts.append(np.unpackbits(values[:, None], axis=1)[:, 8 - bits[name] :].flatten())
    return torch.from_numpy(np.packbits(np.concatenate(parts)))


def unpack_codes(packed: Tensor, shapes: Mapping[str, tuple[int, ...]], bits: Mapping[str, int]) -> Weights:
    stream = np.unpackbits(packed.numpy())
    codes: Weights = {}
    start = 0
    for name in sorted(shapes):
        size, width = math.prod(shapes[name]), bits[name]
        rows = stream[start : start + size * width].reshape(size, width)
        padded = np.concatenate((np.zeros((size, 8 - width), np.uint8), rows), axis=1)
        codes[name] = torch.from_numpy(np.packbits(padded, axis=1)[:, 0]).view(shapes[name])
        start += size * width
    return codes


def packed_bytes(shapes: Mapping[str, tuple[int, ...]], bits: Mapping[str, int]) -> int:
    return -(-sum(math.prod(shape) * bits[name] for name, shape in shapes.items()) // 8)
