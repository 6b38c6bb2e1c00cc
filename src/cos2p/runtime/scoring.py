"""How the server's model is scored, in a simulation and on a fleet alike."""

from __future__ import annotations

from typing import Any

from cos2p.accelerator import resolve
from cos2p.data import Bundle
from cos2p.data.examples import Examples
from cos2p.data.tokenizers import make_encoder, resolved
from cos2p.methods import method_class
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.numerics.output_table import SMALL
from cos2p.recipe import Recipe
from cos2p.seeding import numpy_rng
from cos2p.training.answers import answer_scores
from cos2p.training.evaluation import evaluate_exits


def score_model(
    recipe: Recipe, config: ModelConfig, bundle: Bundle, weights: Weights, everything: bool
) -> dict[str, Any]:
    """Scores on the validation and the test samples, at each exit; on a part of each, unless `everything`."""
    # A large language model has one exit that was ever trained, and its table costs as much as a block.
    top_only = config.task == "language-modeling" and config.vocab > SMALL
    exits = (config.depth,) if top_only else tuple(range(1, config.depth + 1))
    model = method_class(recipe.method["name"]).evaluation_model(config, weights, exits)
    model.to(resolve(recipe.run.accelerator))
    scores: dict[str, Any] = {}
    for name, examples in (("validation", bundle.validation), ("test", bundle.test)):
        part = examples if everything else evaluated_part(recipe, name, examples)
        if len(part):
            by_exit = evaluate_exits(model, part, recipe.data.normalize)
            scores[name] = {str(depth): result for depth, result in by_exit.items()}
            if part.answers:
                encoder = make_encoder(resolved(recipe.data, recipe.model.pretrained))
                scores[name][str(config.depth)] |= answer_scores(model, part, encoder.decode, encoder.end)
    return scores


def evaluated_part(recipe: Recipe, name: str, examples: Examples) -> Examples:
    """The samples that are evaluated during a run: the same for every version, and for every method of a study."""
    count = recipe.schedule.evaluate_samples or len(examples)
    return examples.sample(count, numpy_rng(recipe.seed, "evaluation", name))
