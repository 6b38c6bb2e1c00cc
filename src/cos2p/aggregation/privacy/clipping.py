"""The device's half: an update that is no longer than C, with noise of its own if asked for."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from cos2p.aggregation.settings import PrivacySettings
from cos2p.errors import TrainingError
from cos2p.messages import Update
from cos2p.models.layout import Weights

Draw = Callable[..., torch.Generator]
"""A generator for a purpose, given as words and numbers."""

_MARGIN = 1.0 - 1e-6
"""Scaled tensors are rounded to single precision; a hair below C they are not above it."""


def fresh_draw(*purpose: str | int) -> torch.Generator:
    """From the system's entropy, whatever the purpose: nobody else can draw this noise again, and subtract it."""
    generator = torch.Generator()
    generator.manual_seed(secrets.randbits(63))
    return generator


def norm_of(tensors: Mapping[str, Tensor]) -> float:
    """L2 over all scalars, in double precision."""
    return math.sqrt(math.fsum(float(tensor.double().square().sum()) for tensor in tensors.values()))


def clipped(delta: Weights, clip: float) -> Weights:
    """The update, shortened to norm `clip` if it is longer. TrainingError if it is not finite."""
    norm = norm_of(delta)
    if not math.isfinite(norm):
        raise TrainingError("the update is not finite; lower training.lr")
    if norm <= clip * _MARGIN:
        return delta
    factor = clip * _MARGIN / norm
    return {name: (tensor.double() * factor).to(tensor.dtype) for name, tensor in delta.items()}


def as_it_leaves(update: Update, settings: PrivacySettings, draw: Draw) -> Update:
    """The update as it leaves the device: all of it; in a private run clipped, with noise if that is `local`, and
    without a report: losses and scores are computed from the data too, and no noise covers them."""
    if not settings.on:
        return update
    delta = clipped(update.delta, settings.clip)
    if settings.noise == "local":
        assert settings.multiplier is not None, "see checks.with_multiplier"
        deviation = settings.multiplier * settings.clip
        rng = draw("private update", update.client, update.task)
        delta = {
            name: tensor + deviation * torch.randn(tensor.shape, generator=rng)
            for name, tensor in sorted(delta.items())
        }
    return replace(update.without_figures(), delta=delta, extras={})
