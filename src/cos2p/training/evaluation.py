"""Scores of a model on samples: for the server's model at each exit, for a device's own submodel at its deepest."""

from __future__ import annotations

import torch

from cos2p.data.examples import Examples, Normalize
from cos2p.models.transformer import ElasticTransformer
from cos2p.numerics.metrics import ConfusionCounter
from cos2p.training.distillation import flatten
from cos2p.training.prefix import Features


@torch.no_grad()
def evaluate(
    model: ElasticTransformer,
    examples: Examples,
    normalize: Normalize,
    features: Features | None = None,
    batch: int = 256,
) -> list[dict[str, float]]:
    """Scores (top1, top5, f1) at each of the model's exits, shallowest first."""
    model.eval()
    counters = [ConfusionCounter(model.outputs) for _ in model.spec.exits]
    for rows in examples.batches(batch):
        inputs, labels = examples.batch(rows, normalize)
        outputs = model(inputs, None if features is None else features[rows])
        for counter, output in zip(counters, outputs, strict=True):
            counter.add(*flatten(output, model.targets(labels)))
    return [counter.result() for counter in counters]


def evaluate_exits(model: ElasticTransformer, examples: Examples, normalize: Normalize) -> dict[int, dict[str, float]]:
    """Scores at each of the model's exits, by their depth."""
    return dict(zip(model.spec.exits, evaluate(model, examples, normalize), strict=True))
