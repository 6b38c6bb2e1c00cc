"""What a pretrained model knows before anything trains: exits in closed form at every depth.

    COS2P_DATA=... python -m benchmarks.closed_form minilm-banking77 [--set PATH=VALUE] [--test]

Features of the recipe's training samples, all devices together (sums add up, so this is what devices tell), accuracy
on its validation samples; with --test on its test samples too, which is for the end, when the depth is chosen. Ridge
regression, from the same sums, is there to compare with.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor

from cos2p import ElasticTransformer, Recipe, SubmodelSpec
from cos2p.aggregation.head_merge import closed_form
from cos2p.data.examples import Examples, Normalize
from cos2p.models.config import ModelConfig
from cos2p.models.context import make_context
from cos2p.models.transformer import Exit
from cos2p.runtime.run_setup import build_run_setup, first_weights
from cos2p.training.statistics import class_sums

RIDGE = 0.3
FORMS = ("class means", "ridge regression", "discriminant")


@torch.no_grad()
def features(model: ElasticTransformer, examples: Examples, normalize: Normalize) -> tuple[list[Tensor], Tensor]:
    """What the exit of each depth would read, and the labels."""
    config, found, labels = model.config, [[] for _ in range(model.config.depth)], []  # type: ignore[var-annotated]
    assert model.embed is not None
    for rows in torch.arange(len(examples)).split(32):
        inputs, answers = examples.batch(rows, normalize)
        labels.append(answers)
        context, x_BTD = make_context(config, inputs), model.embed(inputs)
        for block in range(config.depth):
            x_BTD = model.blocks[str(block)](x_BTD, context)
            head = model.exits[str(block + 1)]
            assert isinstance(head, Exit)
            found[block].append(head.features(x_BTD, context))
    return [torch.cat(parts) for parts in found], torch.cat(labels)


def ridge_regression(x_ND: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """To the labels as one-hot vectors, of centred features of length one."""
    unit, targets = F.normalize(x_ND, dim=1), F.one_hot(labels, classes).float()
    mean, shares = unit.mean(0), targets.mean(0)
    scatter = (unit - mean).T @ (unit - mean) / len(unit)
    scatter += RIDGE * scatter.diagonal().mean() * torch.eye(len(scatter))
    weight = torch.linalg.solve(scatter, (unit - mean).T @ (targets - shares) / len(unit)).T
    length = torch.linalg.vector_norm(x_ND, dim=1).mean()
    return weight / length, shares - weight @ mean


def scores(train: tuple[Tensor, Tensor], unseen: tuple[Tensor, Tensor], config: ModelConfig) -> list[float]:
    """Percent right of the three `FORMS`; a model without biases has heads without them, but for the regression."""
    statistics = class_sums(*train, config.classes)
    heads = (
        closed_form(statistics, 1, "means", RIDGE, config.biased),
        ridge_regression(*train, config.classes),
        closed_form(statistics, 1, "discriminant", RIDGE, config.biased),
    )
    x_ND, labels = unseen
    return [100 * float(((x_ND @ w.T + b).argmax(1) == labels).float().mean()) for w, b in heads]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="change a field of the recipe")
    parser.add_argument("--test", action="store_true", help="judge on the test samples too")
    chosen = parser.parse_args()
    recipe = Recipe.load(chosen.recipe, chosen.set)
    run_setup = build_run_setup(recipe)
    config, bundle = run_setup.config, run_setup.bundle
    model = ElasticTransformer(config, SubmodelSpec.full(config, range(1, config.depth + 1)))
    model.load(first_weights(recipe, config)).eval()
    train, labels = features(model, bundle.train, recipe.data.normalize)
    judges = {"validation": bundle.validation} | ({"test": bundle.test} if chosen.test else {})
    unseen = {name: features(model, examples, recipe.data.normalize) for name, examples in judges.items()}
    for name, (_, answers) in unseen.items():
        print(
            f"{name}: {len(answers)} samples, {100 * float(answers.bincount().max()) / len(answers):.1f} % of one class"
        )
    columns = [f"{form}, {name}" for name in unseen for form in FORMS] if chosen.test else list(FORMS)
    print(f"| depth | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}")
    for depth in range(config.depth):
        rows = (scores((train[depth], labels), (f[depth], answers), config) for f, answers in unseen.values())
        print(f"| {depth + 1} | " + " | ".join(f"{value:.1f}" for row in rows for value in row) + " |")


if __name__ == "__main__":
    main()
