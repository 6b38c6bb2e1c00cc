"""Numbers in 8 bits: blocks of 256 neighbours share one scale, their largest magnitude (Dettmers et al., 2110.02861).

Equal steps would leave small values nothing, so a value is written as a root of its share of the scale:

    signed     x = s · c·|c| / 127²       c from −127 to 127; from s down to s/16,129
    unsigned   x = s · c⁴ / 255⁴          c from 1 to 255; from s down to s/4·10⁹, for what is divided by

A running average moves by less than one code at a step. Rounded to the nearest it would stand still, or only ever
rise; so codes are rounded up in proportion to the rest, by turns that are the same in every run (the golden ratio's
multiples, which spread evenly over the steps): over some steps the mean is right and errors do not add up.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cos2p.accelerator import CPU, place

BLOCK = 256
"""Scalars that share a scale."""

SMALL = 4096
"""A tensor with fewer scalars is not worth codes: norms and biases keep their floats."""

_SIGNED, _UNSIGNED = 127.0, 255.0
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
_PLASTIC = 0.7548776662466927  # spreads the neighbours of a block as evenly as the golden ratio does the steps
_LEAST = torch.finfo(torch.float32).tiny


def is_small(scalars: int) -> bool:
    return scalars < SMALL


def blocks_of(scalars: int) -> int:
    return -(-scalars // BLOCK)


def code_bytes(scalars: int) -> int:
    """One tensor in 8 bits: its codes and the scales of its blocks."""
    return scalars + 4 * blocks_of(scalars)


def turns(step: int, scalars: int, device: torch.device = CPU) -> Tensor:
    """In [0, 1) for each scalar of whole blocks: how much is added before a code is cut off, at this step."""
    places = torch.arange(BLOCK, dtype=torch.float64)
    block = torch.frac(places * _PLASTIC + (step % 2**20) * _GOLDEN).to(torch.float32)
    return place(block, device).repeat(blocks_of(scalars))


def quantize_(values: Tensor, scratch: Tensor, added: Tensor, codes: Tensor, scales: Tensor) -> None:
    """Write `values` (fp32, whole blocks, given up as a temporary) into `codes` and `scales`.

    `codes` (int8: signed; uint8: not negative) may be shorter: what lies behind its end in `values` must be 0.
    `scratch` and `added` (see `turns`) are as long as `values`.
    """
    signed = codes.dtype == torch.int8
    sizes = torch.abs(values, out=scratch) if signed else values
    blocks = sizes.view(-1, BLOCK)
    torch.amax(blocks, 1, out=scales)
    blocks.div_(scales.clamp(min=_LEAST)[:, None]).sqrt_()
    if signed:
        torch.copysign(sizes.mul_(_SIGNED), values, out=values)
    else:
        values.sqrt_().mul_(_UNSIGNED).clamp_(min=1.0)
        # What is rounded up adds more to c⁴ than what is cut off takes away: 6·c²·f·(1−f), with f the rest.
        torch.frac(values, out=scratch)
        scratch.addcmul_(scratch, scratch, value=-1.0).div_(values)
        values.sub_(scratch, alpha=1.5)
    values.add_(added).floor_()
    values.clamp_(-_SIGNED if signed else 1.0, _SIGNED if signed else _UNSIGNED)
    codes.copy_(values[: codes.numel()])


def dequantize(codes: Tensor, scales: Tensor, values: Tensor, scratch: Tensor) -> None:
    """Fill `values` (whole blocks) with what `quantize_` wrote; zeros behind the end of `codes`."""
    count = codes.numel()
    values[:count].copy_(codes)
    values[count:].zero_()
    if codes.dtype == torch.int8:
        torch.abs(values, out=scratch)
        values.mul_(scratch)
        most = _SIGNED**2
    else:
        values.square_().square_()
        most = _UNSIGNED**4
    values.view(-1, BLOCK).mul_((scales / most)[:, None])
