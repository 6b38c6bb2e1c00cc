"""The input as blocks and exits need it next to the features: padding, rotary positions, the tokens that are pooled.

Shape legend: B batch, T tokens, N heads, H head size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cos2p.models.config import ModelConfig


class KeyValues:
    """Keys and values of the tokens so far, by block: (B, N, S, H), keys rotated."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[Tensor, Tensor]] = {}

    def extend(self, block: object, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        known = self._of.get(id(block))
        if known is not None:
            keys, values = torch.cat((known[0], keys), 2), torch.cat((known[1], values), 2)
        self._of[id(block)] = keys, values
        return keys, values

    def copies(self, rows: Tensor) -> KeyValues:
        """Those of some texts of the batch, to go on from the same point in another way."""
        other = KeyValues()
        other._of = {block: (keys[rows], values[rows]) for block, (keys, values) in self._of.items()}
        return other


@dataclass(frozen=True)
class Context:
    """The input as attention and exits need it next to the features."""

    mask: Tensor | None = None
    """(B, 1, 1, T) true where a key may be seen; None for all. With `past` (B, 1, T, S)."""
    rotary: tuple[Tensor, Tensor] | None = None
    past: KeyValues | None = None
    """Keys and values of the tokens before these, while a language model generates."""
    last: Tensor | None = None
    """(B,) index of the last real token, for an exit that reads it."""
    shares: Tensor | None = None
    """(B, 1, T) what each token counts in a mean over the real ones: 1/count, 0 for padding."""


def make_context(config: ModelConfig, inputs: Tensor) -> Context:
    """From the raw inputs: images need nothing, token ids give padding mask, positions and what is pooled."""
    if config.family == "vit":
        return Context()
    real_BT = inputs != config.pad_token
    mask = real_BT[:, None, None, :] if config.family == "bert" else None
    rotary = rotary_table(config, inputs.shape[1], inputs.device) if config.family == "llama" else None
    if config.task == "language-modeling":
        return Context(mask, rotary)
    if config.pooling == "mean":
        shares_BT = real_BT / real_BT.sum(1, keepdim=True).clamp(min=1)  # a text of padding alone has mean zero
        return Context(mask, rotary, shares=shares_BT[:, None])
    if config.pooling == "last":
        positions = torch.arange(inputs.shape[1], device=inputs.device)
        return Context(mask, rotary, last=(positions * real_BT).argmax(-1))
    return Context(mask, rotary)


def rotary_table(config: ModelConfig, tokens: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Cosines and sines (T, H) of the first positions."""
    return rotary_at(config, torch.arange(tokens, dtype=torch.float32, device=device))


def rotary_at(config: ModelConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of these positions, (..., T) to (..., T, H)."""
    device = positions.device
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=device) / config.head_dim
    frequency_H = _scaled(config, 1.0 / config.rope_theta**half)
    angle_TH = positions.float()[..., None] * frequency_H
    angle_TH = torch.cat((angle_TH, angle_TH), -1)
    return angle_TH.cos(), angle_TH.sin()


def _scaled(config: ModelConfig, frequency_H: Tensor) -> Tensor:
    """For contexts longer than those a model was trained on first."""
    if config.rope_scaling == "none":
        return frequency_H
    slowed_H = frequency_H / config.rope_factor
    if config.rope_scaling == "linear":
        return slowed_H
    turns_H = config.rope_original * frequency_H / (2 * math.pi)
    kept_H = ((turns_H - config.rope_low) / (config.rope_high - config.rope_low)).clamp(0, 1)
    return kept_H * frequency_H + (1 - kept_H) * slowed_H


def rotate(x_BNTH: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    cos_TH, sin_TH = table
    low, high = x_BNTH.chunk(2, -1)
    return x_BNTH * cos_TH + torch.cat((-high, low), -1) * sin_TH
