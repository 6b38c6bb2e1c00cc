"""How a checkpoint that does not say so is pooled: a head in closed form behind each way, compared on held-out samples.

One pass of the frozen model over at most `SAMPLES` training samples serves all ways; each third of them is held out
once from the sums that the heads are made of.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from cos2p.accelerator import one_thread
from cos2p.aggregation.closed_form import closed_form
from cos2p.data.examples import Examples, Normalize
from cos2p.models.config import POOLINGS, ModelConfig
from cos2p.models.context import make_context
from cos2p.models.layout import Weights, exit_key, exit_parameters
from cos2p.models.spec import SubmodelSpec
from cos2p.models.transformer import ElasticTransformer, Exit
from cos2p.seeding import numpy_rng
from cos2p.training.prefix import loaded
from cos2p.training.statistics import class_sums

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
    """What is before the classifier at the top."""
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
