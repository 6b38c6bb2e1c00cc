"""Adapters as tensors: what they are called, how large they are, how they begin, and the model with them merged in.

    y = W·x + s·Bᵀ·(A·x)          A: `down` (r, inputs), B: `up` (r, outputs)

Both factors have the rank as their first axis, so a device of a smaller rank holds the first rows of each. s is one
number for all ranks: factors of unequal ranks can be averaged, and their products compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor

from cos2p.errors import ConfigError
from cos2p.models.config import ModelConfig
from cos2p.models.hub_adapter import adapter_name
from cos2p.models.layout import Weights, block_parameters
from cos2p.seeding import torch_rng

Target = Literal["q", "k", "v", "o", "fc1", "gate", "fc2"]
"""Matrices of a block that can have an adapter."""

Shapes = dict[str, tuple[int, int]]


def check_targets(config: ModelConfig, targets: Iterable[Target]) -> None:
    known = [name.removesuffix(".weight") for name, p in block_parameters(config).items() if len(p.shape) == 2]
    for target in targets:
        if target not in known:
            raise ConfigError(f"targets name {target!r}; the matrices of this model's blocks are {', '.join(known)}")


def adapter_shapes(config: ModelConfig, blocks: Iterable[int], targets: Iterable[Target], rank: int) -> Shapes:
    """Every adapter tensor of these blocks by name; none for rank 0."""
    matrices = block_parameters(config)
    shapes: Shapes = {}
    for block in blocks if rank else ():
        for target in targets:
            outputs, inputs = matrices[f"{target}.weight"].shape
            shapes[adapter_name(block, target, "down")] = (rank, inputs)
            shapes[adapter_name(block, target, "up")] = (rank, outputs)
    return shapes


def first_adapters(shapes: Mapping[str, tuple[int, int]], seed: int) -> Weights:
    """`down` uniform within ±1/√inputs (Kaiming's rule, as `peft` has it), `up` zero: the model is the base's."""
    return {name: first_factor(name, shape, seed) for name, shape in shapes.items()}


def first_factor(name: str, shape: tuple[int, int], seed: int) -> Tensor:
    """Row by row from generators of their own, so that a smaller rank has the first rows of a larger one."""
    if name.endswith(".up"):
        return torch.zeros(shape)
    rank, inputs = shape
    rows = [torch.rand(inputs, generator=torch_rng(seed, "adapter", name, row)) for row in range(rank)]
    return (torch.stack(rows) * 2 - 1) / math.sqrt(inputs)


def is_adapter(name: str) -> bool:
    return ".adapters." in name


def take_rank(weights: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, int]]) -> Weights:
    """The first rows of every adapter that `shapes` names, as copies."""
    return {name: weights[name][: shape[0]].clone() for name, shape in shapes.items()}


def merged(weights: Mapping[str, Tensor], scale: float) -> Weights:
    """The model with its adapters in its matrices, and next to them the adapters themselves, `scale` folded into `up`.

    A matrix whose adapter is still zero is the base's, bit for bit.
    """
    result = dict(weights)
    for name in (name for name in weights if is_adapter(name) and name.endswith(".up")):
        result[name] = weights[name] * scale
        if bool(weights[name].any()):
            matrix = name.replace(".adapters", "").replace(".up", ".weight")
            down = weights[name.removesuffix("up") + "down"]
            result[matrix] = weights[matrix] + result[name].T @ down
    return result
