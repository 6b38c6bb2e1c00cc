"""Devices that lie, for simulations: what a malicious device sends instead of what it learned. Only the simulator reads
it.

    flip        its update with the sign turned round
    scale       its update, many times as long
    noise       numbers drawn at random
    constant    the same number everywhere
    little      its update and a small step that is always the same, inside what honest devices do
    zero        nothing: it pretends to have trained

The rest of the message is honest, so that all of it passes the update reader. What travels as bits or codes is turned
round, drawn or set alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from cos2p.errors import ConfigError
from cos2p.messages import Order, Update
from cos2p.seeding import torch_rng
from cos2p.settings import Settings

Attack = Literal["none", "flip", "scale", "noise", "constant", "little", "zero"]

STRENGTHS: dict[str, float] = {"scale": 10.0, "noise": 0.1, "constant": 9.9, "little": 1.5}
"""Of `scale` a factor, of `noise` and `constant` a root mean square, of `little` a multiple of the deviation."""


class AttackSettings(Settings):
    """Simulations only: devices that lie. A real fleet refuses a recipe with it."""

    kind: Attack = Field(
        default="none",
        description="`flip` the sign, `scale` the update, send `noise`, a `constant`, a `little` bias or `zero`s.",
    )
    devices: tuple[str, ...] = Field(
        default=(), description="Names of the malicious devices. Empty: the last `count` of the fleet."
    )
    count: int = Field(default=1, ge=1, description="How many lie, if they are not named.")
    strength: float | None = Field(
        default=None,
        gt=0,
        description="Of `scale` the factor (10), of `noise` and `constant` the root mean square (0.1 and 9.9), of "
        "`little` the multiple of the update's own deviation (1.5).",
    )
    from_version: int = Field(default=0, ge=0, description="They are honest with older versions of the model.")

    def malicious(self, names: Sequence[str]) -> tuple[str, ...]:
        """Who of the fleet lies."""
        if self.kind == "none":
            return ()
        unknown = sorted(set(self.devices) - set(names))
        if unknown:
            raise ConfigError(f"attack.devices names {unknown[0]!r}, which is none of the fleet: {', '.join(names)}")
        if self.devices:
            return self.devices
        if self.count > len(names):
            raise ConfigError(f"attack.count is {self.count}; the fleet has {len(names)} devices")
        return tuple(names[-self.count :])


def corrupt(update: Update, order: Order, attack: AttackSettings) -> Update:
    """What a malicious device sends in place of an honest update."""
    if order.version < attack.from_version:
        return update
    rng = torch_rng(order.seed, "attack", order.client, order.attempt)
    strength = attack.strength or STRENGTHS.get(attack.kind, 1.0)

    def lie(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: _lie(tensors[name], attack.kind, strength, rng) for name in sorted(tensors)}

    return replace(update, delta=lie(update.delta), extras=lie(update.extras))


def _lie(tensor: Tensor, kind: Attack, strength: float, rng: torch.Generator) -> Tensor:
    if not tensor.is_floating_point():
        return _lie_in_bits(tensor, kind, rng)
    if kind == "flip":
        return -tensor
    if kind == "scale":
        return tensor * strength
    if kind == "noise":
        return torch.randn(tensor.shape, generator=rng) * strength
    if kind == "constant":
        return torch.full_like(tensor, strength)
    if kind == "little":
        return tensor + strength * (tensor.std() if tensor.numel() > 1 else tensor.abs().mean())
    return torch.zeros_like(tensor)


def _lie_in_bits(tensor: Tensor, kind: Attack, rng: torch.Generator) -> Tensor:
    if tensor.dtype != torch.uint8 or kind in ("scale", "little"):
        return tensor
    if kind == "flip":
        return tensor.bitwise_not()
    if kind == "noise":
        return torch.randint(256, tensor.shape, generator=rng, dtype=torch.uint8)
    return torch.zeros_like(tensor)
