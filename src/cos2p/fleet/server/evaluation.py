"""The server's evaluation, in a process of its own: the run goes on while it counts."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from cos2p.data import Bundle, load
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.processes.pool import ProcessPool
from cos2p.recipe import Recipe
from cos2p.runtime.scoring import score_model


class Evaluator:
    """Scores versions of the model on the recipe's validation and test samples."""

    def __init__(self, recipe: Recipe, config: ModelConfig, folder: Path) -> None:
        """`folder`: where a version lies while it is scored; as bytes on the way it would be in memory three times."""
        self._pool = ProcessPool(1, _start, recipe.model_dump(mode="json"), config.to_dict())
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="evaluation")
        self._file = folder / ".evaluated.cos2p-tmp"

    def evaluate(self, weights: Weights, everything: bool = False) -> Future[dict[str, Any]]:
        return self._thread.submit(self._score, weights, everything)

    def _score(self, weights: Weights, everything: bool) -> dict[str, Any]:
        try:
            save_file({name: tensor.contiguous() for name, tensor in weights.items()}, self._file)
            return self._pool.submit(_evaluate, str(self._file), everything).result()
        finally:
            self._file.unlink(missing_ok=True)

    def close(self) -> None:
        self._pool.close()
        self._thread.shutdown(cancel_futures=True)


_recipe: Recipe
_config: ModelConfig
_bundle: Bundle


def _start(recipe: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    global _recipe, _config, _bundle
    torch.set_num_threads(1)
    _recipe, _config = Recipe.parse(recipe), ModelConfig.from_dict(dict(config))
    _bundle = load(_recipe.data, _recipe.seed, _recipe.model.pretrained)


def _evaluate(file: str, everything: bool) -> dict[str, Any]:
    return score_model(_recipe, _config, _bundle, dict(sorted(load_file(file).items())), everything)
