"""Fields that a recipe leaves open, and its checkpoint or its data decide: settled once, when a run begins.

    data.mean, data.std   as the checkpoint's preprocessor_config.json has them, else 0.5
    model.pooling         as the checkpoint says; one that does not say is compared

The stored recipe has all of it, so that a resumed run, its workers and its devices compute the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cos2p.accelerator import one_thread
from cos2p.aggregation.head_merge import closed_form
from cos2p.data import Bundle
from cos2p.data.examples import Examples, Normalize
from cos2p.models.config import POOLINGS, ModelConfig
from cos2p.models.context import make_context
from cos2p.models.hub import pretrained_weights
from cos2p.models.hub_export import stored_normalization
from cos2p.models.hub_files import resolve
from cos2p.models.hub_fit import Checkpoint
from cos2p.models.layout import Weights, exit_key, exit_parameters
from cos2p.models.spec import SubmodelSpec
from cos2p.models.transformer import ElasticTransformer, Exit
from cos2p.recipe import Recipe
from cos2p.seeding import numpy_rng
from cos2p.training.prefix import loaded
from cos2p.training.statistics import class_sums

OPEN = (("model", "pooling"), ("data", "mean"), ("data", "std"))
"""Tables and fields that may be open."""


@dataclass(frozen=True)
class Settled:
    recipe: Recipe
    config: ModelConfig
    notes: tuple[str, ...]
    """The decisions, and why."""


def settle(recipe: Recipe, bundle: Bundle, config: ModelConfig) -> Settled:
    """`config` is the model with the habits of its family where the recipe leaves something open."""
    said = _stored_normalization(recipe, config)
    notes = [*bundle.notes, *_normalization_notes(recipe, said)]
    own, default = recipe.data, recipe.data.normalize
    recipe = _changed(
        recipe, "data", mean=own.mean or said.get("mean", default.mean), std=own.std or said.get("std", default.std)
    )
    if config.task == "classification" and pooling_is_open(recipe):
        pooling, why = _choose_pooling(recipe, bundle, config)
        recipe, config = _changed(recipe, "model", pooling=pooling), config.with_(pooling=pooling)
        notes.append(why)
    return Settled(recipe, config, tuple(notes))


def settled_as(recipe: Recipe, stored: Recipe) -> Recipe:
    """The recipe with what it leaves open as it was settled in `stored`."""
    for table, field in OPEN:
        if getattr(getattr(recipe, table), field) is None:
            recipe = _changed(recipe, table, **{field: getattr(getattr(stored, table), field)})
    return recipe


def _changed(recipe: Recipe, table: str, **fields: Any) -> Recipe:
    return recipe.model_copy(update={table: getattr(recipe, table).model_copy(update=fields)})


# ---------------------------------------------------------------- mean and deviation of images


def _stored_normalization(recipe: Recipe, config: ModelConfig) -> dict[str, tuple[float, ...]]:
    """The checkpoint's own, for as many channels as the images have; for grey ones the average of its channels."""
    if not recipe.model.pretrained or config.family != "vit":
        return {}
    said = stored_normalization(resolve(recipe.model.pretrained))
    if config.channels == 1:
        return {name: (round(sum(values) / len(values), 6),) for name, values in said.items()}
    return said


def _normalization_notes(recipe: Recipe, said: dict[str, tuple[float, ...]]) -> Iterator[str]:
    own = {name: getattr(recipe.data, name) for name in said}
    if taken := [f"{name} {_listed(said[name])}" for name, values in own.items() if values is None]:
        yield f"images get the {', '.join(taken)} of the checkpoint's preprocessor_config.json"
    for name, values in own.items():
        if values is not None and _for_three(values) != _for_three(said[name]):
            theirs = _listed(said[name])
            yield f"data.{name} is {_listed(values)}, the checkpoint's preprocessor_config.json has {theirs}"


def _for_three(values: tuple[float, ...]) -> tuple[float, ...]:
    return values * 3 if len(values) == 1 else values


def _listed(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:g}" for value in values)


# ---------------------------------------------------------------- pooling


def pooling_is_open(recipe: Recipe) -> bool:
    """Whether neither the recipe nor its checkpoint says how a classifier is pooled."""
    settings = recipe.model
    if not settings.pretrained or settings.pooling is not None or recipe.data.task != "classification":
        return False
    return not Checkpoint.read(settings.pretrained).says_pooling


def _choose_pooling(recipe: Recipe, bundle: Bundle, config: ModelConfig) -> tuple[str, str]:
    weights = pretrained_weights(recipe.model.pretrained, config)
    found = compare_poolings(config, weights, bundle.train, recipe.data.normalize, recipe.seed)
    if not found:
        assumed = "cls" if config.family == "vit" else "mean"  # the better one wherever it was measured
        return assumed, (
            f"model.pooling = {assumed!r} is assumed: the checkpoint names none, and there are too few samples to "
            "compare; set it if it is another"
        )
    best, *others = sorted(found, key=lambda pooling: -found[pooling])
    than = ", ".join(f"{100 * found[pooling]:.1f} % with {pooling!r}" for pooling in others)
    return best, (
        f"model.pooling = {best!r} was chosen, since the checkpoint names none: a head in closed form has "
        f"{100 * found[best]:.1f} % of the held-out samples right, {than}"
    )


SAMPLES = 1000
LEAST = 60
"""Samples below which nothing is compared."""
FOLDS = 3
RIDGE = 0.3
BATCH = 32


def compare_poolings(
    config: ModelConfig, weights: Weights, train: Examples, normalize: Normalize, seed: int
) -> dict[str, float]:
    """Share of held-out samples that are right with each pooling of the family; empty if the samples are too few.

    `weights` are those of the family's habitual pooling, whose exit has all that the others' have.
    """
    rng = numpy_rng(seed, "pooling")
    drawn = train.sample(SAMPLES, rng)
    if len(drawn) < LEAST or len(drawn.labels.unique()) < 2:
        return {}
    model = ElasticTransformer(config, SubmodelSpec.full(config, (config.depth,))).load(weights).eval()
    exits: dict[str, Exit] = {name: _exit(config.with_(pooling=name), weights) for name in POOLINGS[config.family]}
    folds = torch.from_numpy(rng.permutation(len(drawn)) % FOLDS)
    with one_thread():
        features, labels = _features(model, exits, drawn, normalize)
        return {name: _accuracy(config, x_ND, labels, folds) for name, x_ND in features.items()}


def _exit(config: ModelConfig, weights: Weights) -> Exit:
    """The layers before the classifier at the top."""
    module, key = Exit(config), exit_key(config, config.depth)
    del module.linear
    names = [name for name in exit_parameters(config) if not name.startswith("linear.")]
    return loaded(module, {name: weights[f"{key}.{name}"] for name in names})


@torch.no_grad()
def _features(
    model: ElasticTransformer, exits: Mapping[str, Exit], examples: Examples, normalize: Normalize
) -> tuple[dict[str, Tensor], Tensor]:
    """By exit what its classifier would read (N, D), and the labels, in the same order."""
    assert model.embed is not None
    found: dict[str, list[Tensor]] = {name: [] for name in exits}
    labels = []
    for rows in examples.batches(BATCH):
        inputs, answers = examples.batch(rows, normalize)
        labels.append(answers)
        x_BTD, context = model.embed(inputs), make_context(model.config, inputs)
        for block in model.blocks.values():
            x_BTD = block(x_BTD, context)
        for name, head in exits.items():
            found[name].append(head.features(x_BTD, make_context(head.config, inputs)))
    return {name: torch.cat(parts) for name, parts in found.items()}, torch.cat(labels)


def _accuracy(config: ModelConfig, x_ND: Tensor, labels: Tensor, folds: Tensor) -> float:
    right = 0
    for fold in range(FOLDS):
        seen, held = folds != fold, folds == fold
        sums = class_sums(x_ND[seen], labels[seen], config.classes)
        weight, bias = closed_form(sums, 1, "discriminant", RIDGE, config.biased)
        right += int(((x_ND[held] @ weight.T + bias).argmax(1) == labels[held]).sum())
    return right / len(labels)
