"""`Trained`: a model that answers, with how its inputs are prepared and what its answers are called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from cos2p.data.config import DataConfig
from cos2p.data.tokenizers import Encoder, make_encoder
from cos2p.methods import Method
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.models.transformer import ElasticTransformer
from cos2p.recipe import Recipe


@dataclass(frozen=True, eq=False)
class Trained:
    where: str
    """Where it was found, for messages."""
    config: ModelConfig
    weights: Weights
    """All that `config` has, as the method evaluates them."""
    exit: int
    """Depth of the exit that answers: so many blocks below it."""
    classes: tuple[str, ...]
    """Names of the classes; empty for a language model."""
    data: DataConfig
    """How inputs are prepared: size, channels, crop, mean and deviation; tokenizer and length."""
    method: type[Method] = Method
    """Knows the forward pass of the weights."""
    recipe: Recipe | None = None
    result: Mapping[str, Any] = field(default_factory=dict)
    """Figures of its run; empty where there is no run."""
    device: str = ""
    """Whose own submodel it is; empty: the server's model."""

    @property
    def is_text(self) -> bool:
        return self.config.family != "vit"

    @property
    def generates(self) -> bool:
        return self.config.task == "language-modeling"

    @cached_property
    def model(self) -> ElasticTransformer:
        exits = sorted({self.exit, self.config.depth})  # a model's last exit is always its deepest
        return self.method.evaluation_model(self.config, self.weights, exits).eval()

    @cached_property
    def encoder(self) -> Encoder:
        return make_encoder(self.data)

    @torch.no_grad()
    def outputs(self, inputs: Tensor) -> Tensor:
        """Logits (B, classes), of a language model (B, T, vocabulary)."""
        return self.model(inputs)[0]  # type: ignore[no-any-return]
