"""How the server's model is scored, in a simulation and on a fleet alike."""

from __future__ import annotations

from typing import Any

import torch

from cos2p.accelerator import resolve
from cos2p.data import Bundle
from cos2p.data.examples import Examples
from cos2p.methods import method_class
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.recipe import Recipe
from cos2p.training.evaluation import evaluate_exits


def score_model(
    recipe: Recipe, config: ModelConfig, bundle: Bundle, weights: Weights, everything: bool
) -> dict[str, Any]:
    """Scores on the validation and the test samples, at each exit; of the test samples a part, unless `everything`."""
    exits = tuple(range(1, config.depth + 1))
    limit = recipe.schedule.evaluate_samples
    model = method_class(recipe.method["name"]).evaluation_model(config, weights, exits)
    model.to(resolve(recipe.run.accelerator))
    scores: dict[str, Any] = {}
    for name, examples in (("validation", bundle.validation), ("test", bundle.test)):
        part = examples if everything or name == "validation" else _first(examples, limit)
        if len(part):
            by_exit = evaluate_exits(model, part, recipe.data.normalize)
            scores[name] = {str(depth): result for depth, result in by_exit.items()}
    return scores


def _first(examples: Examples, limit: int) -> Examples:
    return examples.subset(torch.arange(limit)) if 0 < limit < len(examples) else examples
