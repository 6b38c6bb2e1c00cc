"""The server's evaluation, in a process of its own: the run goes on while it counts."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import safetensors.torch
import torch

from cos2p.data import Bundle, load
from cos2p.messages import load_tensors
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.processes.pool import ProcessPool
from cos2p.recipe import Recipe
from cos2p.runtime.scoring import score_model


class Evaluator:
    """Scores versions of the model on the recipe's validation and test samples."""

    def __init__(self, recipe: Recipe, config: ModelConfig) -> None:
        self._pool = ProcessPool(1, _start, recipe.model_dump(mode="json"), config.to_dict())

    def evaluate(self, weights: Weights, everything: bool = False) -> Future[dict[str, Any]]:
        data = safetensors.torch.save({name: tensor.contiguous() for name, tensor in weights.items()})
        return self._pool.submit(_evaluate, data, everything)

    def close(self) -> None:
        self._pool.close()


_recipe: Recipe
_config: ModelConfig
_bundle: Bundle


def _start(recipe: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    global _recipe, _config, _bundle
    torch.set_num_threads(1)
    _recipe, _config = Recipe.parse(recipe), ModelConfig.from_dict(dict(config))
    _bundle = load(_recipe.data, _recipe.seed, _recipe.model.pretrained)


def _evaluate(weights: bytes, everything: bool) -> dict[str, Any]:
    return score_model(_recipe, _config, _bundle, load_tensors(weights), everything)
