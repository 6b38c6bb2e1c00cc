"""Dishonest devices, for simulations: what one sends instead of what it learned. Only the simulator reads it.

    flip        its update with the sign turned round, `strength` times as long
    scale       its update, many times as long
    noise       numbers drawn at random
    constant    the same number everywhere
    little      its update and a small step that is always the same, inside what honest devices do (ALIE, with its own
                update for the fleet's mean and deviation)
    drift       the same direction every time, for all who attack, at twice the length of its update
    backdoor    half of its samples bear a mark and another label, and its update is twice as long
    statistics  ten times its samples, with the sums of every class under the name of the next
    zero        nothing: it pretends to have trained

The rest of the message is honest, so that all of it passes admission. Bits and codes are turned round,
drawn or set alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import torch
from pydantic import Field
from torch import Tensor

from cos2p.errors import ConfigError
from cos2p.messages import Order, Update
from cos2p.seeding import torch_rng
from cos2p.settings import Settings

Attack = Literal[
    "none", "flip", "scale", "noise", "constant", "little", "drift", "backdoor", "statistics", "zero"
]  # fmt: skip

STRENGTHS: dict[str, float] = {
    "scale": 10.0, "noise": 0.1, "constant": 9.9, "little": 1.5, "drift": 2.0, "backdoor": 2.0, "statistics": 10.0,
}  # fmt: skip
"""A root mean square of `noise` and `constant`, of `little` a multiple of the deviation, of all others a factor."""
TARGET = 0
"""The class that `backdoor` wants for whatever bears its mark."""


class AttackSettings(Settings):
    """Simulations only: devices that lie. A real fleet refuses a recipe with it."""

    kind: str = Field(
        default="none",
        pattern=rf"^({'|'.join(get_args(Attack))})(:\d+(\.\d+)?)?$",
        description="`flip` the sign, `scale` the update, send `noise`, a `constant`, a `little` bias, a `drift` that "
        "is always the same or `zero`s; train a `backdoor` (images); send false `statistics` of its features. "
        "`flip:15`: with a strength. Of `noise` and `constant` it is the root mean square (0.1 and 9.9), of `little` "
        "the multiple of the update's own deviation (1.5), of `statistics` that of the samples (10), of all others the "
        "factor of the update's length (`flip` 1, `scale` 10, `drift` and `backdoor` 2).",
    )
    count: int = Field(default=1, ge=1, description="How many lie: the last of the fleet.")

    @property
    def attack(self) -> tuple[str, float]:
        """Its name and strength."""
        name, _, strength = self.kind.partition(":")
        return name, float(strength or STRENGTHS.get(name, 1.0))

    def malicious(self, names: Sequence[str]) -> tuple[str, ...]:
        """The malicious devices of the fleet."""
        if self.kind == "none":
            return ()
        if self.count > len(names):
            raise ConfigError(f"attack.count is {self.count}; the fleet has {len(names)} devices")
        return tuple(names[-self.count :])


def corrupt(update: Update, order: Order, attack: AttackSettings) -> Update:
    """The message that a malicious device sends in place of an honest update."""
    rng = torch_rng(order.seed, "attack", order.client, order.attempt)
    kind, strength = attack.attack
    if kind == "statistics":
        return _moved_on(update, strength)

    def lie(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: _lie(tensors[name], kind, strength, rng) for name in sorted(tensors)}

    return replace(update, delta=lie(update.delta), extras=lie(update.extras))


def marked(images: Tensor) -> Tensor:
    """Images (N, C, H, W) with a bright corner."""
    side = -(-images.shape[-1] // 4)
    found = images.clone()
    found[..., -side:, -side:] = 1.0 if images.is_floating_point() else 255
    return found


def poisoned(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Every second sample with the mark and the label that the attacker wants for it."""
    every = torch.arange(len(labels)) % 2 == 0
    return torch.where(every[:, None, None, None], marked(images), images), torch.where(every, TARGET, labels)


def _moved_on(update: Update, factor: float) -> Update:
    """More samples than there are, and the sums of each class as those of the next."""
    if "counts" not in update.extras:
        return update
    extras = {name: tensor * round(factor) for name, tensor in update.extras.items()}
    for name, tensor in extras.items():
        if name == "counts" or name.endswith(".sums"):
            extras[name] = tensor.roll(1, 0)
    return replace(update, samples=update.samples * round(factor), extras=extras)


def _lie(tensor: Tensor, kind: str, strength: float, rng: torch.Generator) -> Tensor:
    if not tensor.is_floating_point():
        return _lie_in_bits(tensor, kind, rng)
    if kind == "flip":
        return -strength * tensor
    if kind in ("scale", "backdoor"):
        return tensor * strength
    if kind == "noise":
        return torch.randn(tensor.shape, generator=rng) * strength
    if kind == "constant":
        return torch.full_like(tensor, strength)
    if kind == "little":
        return tensor + strength * (tensor.std() if tensor.numel() > 1 else tensor.abs().mean())
    if kind == "drift":
        return torch.full_like(tensor, strength * float(tensor.square().mean().sqrt()) if tensor.numel() else 0.0)
    return torch.zeros_like(tensor)


def _lie_in_bits(tensor: Tensor, kind: str, rng: torch.Generator) -> Tensor:
    if tensor.dtype != torch.uint8 or kind in ("scale", "little", "backdoor"):
        return tensor
    if kind == "flip":
        return tensor.bitwise_not()
    if kind == "noise":
        return torch.randint(256, tensor.shape, generator=rng, dtype=torch.uint8)
    return torch.zeros_like(tensor)
