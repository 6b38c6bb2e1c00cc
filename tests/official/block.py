"""One block whose scalars the official code saw as separate weights: sums of its numbers over our segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cos2p import ModelConfig, SubmodelSpec
from cos2p.models.layout import init_weights
from cos2p.models.transformer import ElasticTransformer
from cos2p.submodel.slicing import extract
from tests.aggregation.brute import segments
from tests.official.case import wave

VIT = ModelConfig("vit", dim=4, depth=1, heads=2, mlp=3, classes=2, image=2, patch=1, channels=1)


def model(shapes: Mapping[str, Sequence[int]]) -> ElasticTransformer:
    """The tiny model, with wave(1 + i) in tensor i of `shapes`."""
    weights = init_weights(VIT, 0)
    weights |= {f"blocks.0.{name}": wave(shape, 1.0 + i) for i, (name, shape) in enumerate(shapes.items())}
    spec = SubmodelSpec.full(VIT)
    return ElasticTransformer(VIT, spec).load(extract(weights, VIT, spec))


def give_gradients(to: ElasticTransformer, shapes: Mapping[str, Sequence[int]], step: int) -> None:
    """wave(30 + 11·step + i) as the gradient of tensor i."""
    parameters = dict(to.named_parameters())
    for i, (name, shape) in enumerate(shapes.items()):
        parameters[f"blocks.0.{name}"].grad = wave(shape, 30.0 + 11 * step + i)


def by_segment(official: Mapping[str, Sequence[float]], shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """Sums of the official numbers of all weights over the heads and units, and how many weights each has."""
    tensors = {f"blocks.0.{name}": torch.tensor(official[name]).view(*shapes[name]) for name in shapes}
    found: dict[str, list[float]] = {}
    for segment in segments(VIT):
        if segment.place is not None:
            found.setdefault(segment.key, []).append(segment.norm(tensors))
            found.setdefault(f"size of {segment.key}", []).append(float(segment.size))
    return {key: torch.tensor(values, dtype=torch.float64) for key, values in found.items()}
