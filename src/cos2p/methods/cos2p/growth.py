"""A model that grows from the bottom: what has to be so before its windows can rise.

Windows end at one height, which rises (`window.schedule = "growing"`). Blocks above it add nothing to what they get, so
that the model is whole at every moment and can be read at its top; and one exit serves every height, so that what it
has learned below is not lost with the next block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cos2p.errors import ConfigError
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights, init_tensor

LAST = ("o.weight", "fc2.weight")
"""What writes into the residual: where it is zero, a fresh block passes on what it gets, and can still learn."""


def with_one_exit(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fields of `[model]` that are other defaults with these of `[method]`."""
    window = settings.get("window")
    schedule = window.get("schedule") if isinstance(window, Mapping) else None
    grows = schedule == "growing" or (settings.get("form") == "growing" and schedule is None)
    return {"exits": "shared"} if grows else {}


def passing_on(config: ModelConfig, weights: Weights, reach: int, seed: int) -> Weights:
    """The fresh model whose blocks from `reach` on add nothing yet."""
    if config.exits != "shared":
        raise ConfigError(
            "method.window.schedule 'growing' reads every height by the same exit: set model.exits = 'shared', "
            "or another schedule"
        )
    names = [f"blocks.{block}.{name}" for block in range(reach, config.depth) for name in LAST]
    if names and not torch.equal(weights[names[-1]], init_tensor(config, names[-1], seed)):
        raise ConfigError(
            "method.window.schedule 'growing' begins with empty blocks, and this model comes from a checkpoint, whose "
            "blocks it would lose; take method.form = 'pretrained'"
        )
    return {**weights, **{name: torch.zeros_like(weights[name]) for name in names}}
