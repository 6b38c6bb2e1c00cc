"""Scores of a model on samples: for the server's model at each exit, for a device's own submodel at its deepest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from cos2p.data.examples import Examples, Normalize
from cos2p.errors import ConfigError
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights, layout
from cos2p.models.transformer import ElasticTransformer
from cos2p.submodel.slicing import window_slices
from cos2p.submodel.spec import SubmodelSpec
from cos2p.submodel.thin import fitted_config
from cos2p.tracking.metrics import ConfusionCounter
from cos2p.training.distillation import flatten
from cos2p.training.prefix import Features

Build = Callable[[ModelConfig, SubmodelSpec, Weights], ElasticTransformer]

FORWARDS: dict[str, Build] = {}
"""How to build a model that has tensors beside the plain ones, by the first part of their names."""


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
    counters = [ConfusionCounter(model.config.outputs) for _ in model.spec.exits]
    for rows in examples.batches(batch):
        inputs, labels = examples.batch(rows, normalize)
        outputs = model(inputs, None if features is None else features[rows])
        for counter, output in zip(counters, outputs, strict=True):
            counter.add(*flatten(output, labels))
    return [counter.result() for counter in counters]


def evaluate_global(
    config: ModelConfig, weights: Weights, examples: Examples, normalize: Normalize, exits: Sequence[int]
) -> dict[int, dict[str, float]]:
    """Scores of the full model, or of a thin one's tensors, at the exits named, by their depth."""
    config = fitted_config(config, weights)
    model = build_model(config, SubmodelSpec.full(config, sorted(exits)), weights)
    return dict(zip(model.spec.exits, evaluate(model, examples, normalize), strict=True))


def build_model(config: ModelConfig, spec: SubmodelSpec, weights: Weights) -> ElasticTransformer:
    """The plain transformer, or what the tensors beside it ask for: `adavit.3.heads.bias` the forward `adavit`."""
    plain = {name: weights[name] for name in window_slices(config, spec)}
    kinds = {name.partition(".")[0] for name in weights.keys() - layout(config).keys()}
    if not kinds:
        return ElasticTransformer(config, spec).load(plain)
    if not kinds <= FORWARDS.keys():
        from cos2p.methods import methods  # a method's module brings its forward along

        methods()
    if len(kinds) > 1 or not kinds <= FORWARDS.keys():
        raise ConfigError(f"no forward is known for tensors named {', '.join(sorted(kinds))}")
    beside = {name: tensor for name, tensor in weights.items() if name not in layout(config)}
    return FORWARDS[kinds.pop()](config, spec, {**plain, **beside})
