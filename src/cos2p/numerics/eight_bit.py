"""Adan and AdamW whose states between steps are 8-bit codes: 4.06 and 2.03 bytes a scalar instead of 16 and 8.

A step takes a chunk of a tensor at a time: codes become floats, the ordinary update is done, floats become codes. So
the update itself is exact, and no temporary is as large as a tensor.

Codes: blocks of 256 neighbours share one scale, their largest magnitude (Dettmers et al., 2110.02861). Equal steps
would leave small values nothing, so a code is a root of the value's share of the scale:

    signed     x = s · c·|c| / 127²       c from −127 to 127; from s down to s/16,129
    unsigned   x = s · c⁴ / 255⁴          c from 1 to 255; from s down to s/4·10⁹, for what is divided by

A running average moves by less than one code at a step. Rounded to the nearest it would stand still, or only ever
rise; so codes are rounded up in proportion to the rest, by turns that are the same in every run (the golden ratio's
multiples, which spread evenly over the steps): over some steps the mean is right and errors do not add up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from cos2p.accelerator import CPU, place
from cos2p.errors import ConfigError
from cos2p.numerics.adan import Adan, ChunkedOptimizer, require_not_negative, update_chunk

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
        # Rounding up adds more to c⁴ than cutting off takes away: 6·c²·f·(1−f), with f the rest.
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


# ---------------------------------------------------------------- the optimisers

CHUNK_SCALARS = 64 * 1024
"""Scalars that are floats at a time. Smaller chunks would take longer to call than to compute."""

EIGHT_BIT_TEMPORARY_BYTES = 8 * 4 * CHUNK_SCALARS
"""No step holds more temporaries than this: states as floats, scratch, what is rounded up, the update's own."""


class EightBitOptimizer(ChunkedOptimizer):
    """Base of the two. A tensor that is small, not fp32 or not contiguous keeps float states.

    State per parameter: `step`, and for every name in `codes` the codes with their scales (`name.scales`), or floats.
    """

    codes: ClassVar[Mapping[str, torch.dtype]]
    """The states and what they are written in: int8 has a sign, uint8 is for second moments."""
    from_gradient: ClassVar[tuple[str, ...]] = ()
    """States that are the gradient itself at a parameter's first step; the others are 0."""

    def _update(self, theta: Tensor, g: Tensor, states: list[Tensor], step: int, group: dict[str, Any]) -> None:
        """One step of a piece, in place, with at most one temporary of its size."""
        raise NotImplementedError

    def _step_group(self, group: dict[str, Any]) -> None:
        for parameter in group["params"]:
            if parameter.grad is not None and parameter.numel():
                self._step_parameter(parameter, parameter.grad, group)

    def _step_parameter(self, theta: Tensor, g: Tensor, group: dict[str, Any]) -> None:
        state = self.state[theta]
        if not state:
            self._start(state, theta, g)
        state["step"] += 1
        if _has_codes(theta):
            self._step_codes(theta.view(-1), g.reshape(-1), state, group)
        else:
            self._update(theta, g, [state[name] for name in self.codes], state["step"], group)

    def _start(self, state: dict[str, Any], theta: Tensor, g: Tensor) -> None:
        state["step"] = 0
        for name, dtype in self.codes.items():
            if _has_codes(theta):
                state[name] = torch.zeros(theta.numel(), dtype=dtype, device=theta.device)
                state[f"{name}.scales"] = torch.zeros(blocks_of(theta.numel()), device=theta.device)
            else:
                state[name] = g.clone() if name in self.from_gradient else torch.zeros_like(theta)

    def _step_codes(self, theta: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        step, names = state["step"], list(self.codes)
        space = torch.empty(len(names) + 1, min(CHUNK_SCALARS, blocks_of(theta.numel()) * BLOCK), device=theta.device)
        added = turns(step, space.shape[1], theta.device)
        for begin in range(0, theta.numel(), CHUNK_SCALARS):
            count = min(CHUNK_SCALARS, theta.numel() - begin)
            whole, first = blocks_of(count) * BLOCK, begin // BLOCK
            piece, blocks = slice(begin, begin + count), slice(first, first + blocks_of(count))
            *values, scratch = space[:, :whole]
            for name, floats in zip(names, values, strict=True):
                dequantize(state[name][piece], state[f"{name}.scales"][blocks], floats, scratch)
                if step == 1 and name in self.from_gradient:
                    floats[:count].copy_(g[piece])
            self._update(theta[piece], g[piece], [floats[:count] for floats in values], step, group)
            for name, floats in zip(names, values, strict=True):
                quantize_(floats, scratch, added[:whole], state[name][piece], state[f"{name}.scales"][blocks])


def _has_codes(theta: Tensor) -> bool:
    return theta.dtype == torch.float32 and theta.is_contiguous() and not is_small(theta.numel())


class Adan8bit(EightBitOptimizer):
    """`Adan` with 8-bit states; the same options."""

    codes = {"m": torch.int8, "u": torch.int8, "n": torch.uint8, "previous": torch.int8}  # noqa: RUF012
    from_gradient = ("previous",)

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float, float] = (0.98, 0.92, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, Adan.check(lr, betas, eps, weight_decay))

    def _update(self, theta: Tensor, g: Tensor, states: list[Tensor], step: int, group: dict[str, Any]) -> None:
        m, u, n, previous = ([state] for state in states)
        options = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay")}
        update_chunk(([theta], [g], m, u, n, previous), step, **options)


class AdamW8bit(EightBitOptimizer):
    """`torch.optim.AdamW` (decoupled decay, no AMSGrad) with 8-bit states."""

    codes = {"m": torch.int8, "n": torch.uint8}  # noqa: RUF012

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        require_not_negative(lr=lr, weight_decay=weight_decay)
        if len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas):
            raise ConfigError(f"betas={betas}: AdamW needs two values in [0, 1), such as (0.9, 0.999)")
        if not 0.0 < eps < math.inf:
            raise ConfigError(f"eps={eps}: must be above 0, such as 1e-8")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def _update(self, theta: Tensor, g: Tensor, states: list[Tensor], step: int, group: dict[str, Any]) -> None:
        (m, n), (beta1, beta2), lr = states, group["betas"], group["lr"]
        m.lerp_(g, 1.0 - beta1)
        n.mul_(beta2).addcmul_(g, g, value=1.0 - beta2)
        s = math.sqrt(1.0 - beta2**step)
        theta.mul_(1.0 - lr * group["weight_decay"])
        theta.addcdiv_(m, n.sqrt().add_(group["eps"] * s), value=-lr * s / (1.0 - beta1**step))
