"""FedPM's random network, its masks and their bits on the wire: what devices and server compute alike.

The weights of heads and units are random signs times a constant, made from the run's seed and never changed. What is
learned is a score s for every weight (or every segment): a forward pass uses it with probability θ = σ(s).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from cos2p import ModelConfig, SubmodelSpec, extract
from cos2p.methods import Weights, layout, place, torch_rng, trained_shapes
from cos2p_rivals.segments import scale_outputs
from cos2p_rivals.side_tensors import SideTensor, side_shapes

Ste = Literal["official", "identity"]

SURE = 0.99
"""A bit counts as a probability of 0.99 or 0.01 (public code), so that its logit is finite."""


def is_masked(config: ModelConfig, name: str) -> bool:
    """Whether a tensor belongs to heads or units."""
    return layout(config)[name].in_block


def random_weight(config: ModelConfig, name: str, seed: int, gain: float) -> Tensor:
    """±gain/√fan_in, the same on every device and on the server. A bias has the constant of its layer."""
    shape = layout(config)[name].shape
    matrix = name.removesuffix(".bias") + ".weight" if name.endswith(".bias") else name
    fan_in = layout(config)[matrix].shape[1]
    signs = torch.randint(0, 2, shape, generator=torch_rng(seed, "fedpm", name)) * 2 - 1
    return signs * (gain / math.sqrt(fan_in))


def random_weights(config: ModelConfig, spec: SubmodelSpec, seed: int, gain: float) -> Weights:
    """The random network's tensors of a submodel, cut one after the other."""
    return {
        name: extract({name: random_weight(config, name, seed, gain)}, config, spec, [name])[name]
        for name in masked_shapes(config, spec)
    }


class _Masked(torch.autograd.Function):
    """w ⊙ M; backward to the scores. Nothing is kept but what is there anyway."""

    @staticmethod
    def forward(ctx: Any, score: Tensor, weight: Tensor, uniform: Tensor, ste: Ste) -> Tensor:
        ctx.save_for_backward(score, weight)
        ctx.ste = ste
        return weight * (uniform < score.sigmoid())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        score, weight = ctx.saved_tensors
        theta = score.sigmoid()
        slope = theta * (1 - theta)
        return grads[0] * weight * (slope * theta if ctx.ste == "official" else slope), None, None, None


def draw(score: Tensor, weight: Tensor, rng: torch.Generator, ste: Ste) -> Tensor:
    """The weight under a fresh mask."""
    uniform = place(torch.rand(score.shape, generator=rng), score.device)
    return _Masked.apply(score, weight, uniform, ste)  # type: ignore[no-any-return, no-untyped-call]


def to_scores(theta: Tensor) -> Tensor:
    return torch.logit(theta, eps=1 - SURE)


# ---------------------------------------------------------------- which tensors have a mask


def masked_shapes(config: ModelConfig, spec: SubmodelSpec) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, shape in trained_shapes(config, spec).items() if is_masked(config, name)}


def segment_table(config: ModelConfig) -> dict[str, SideTensor]:
    """θ of every head and unit."""
    table: dict[str, SideTensor] = {}
    for block in range(config.depth):
        table[f"fedpm.{block}.heads"] = SideTensor((config.groups,), "head", block)
        table[f"fedpm.{block}.units"] = SideTensor((config.mlp,), "unit", block)
    return table


def segment_shapes(config: ModelConfig, spec: SubmodelSpec) -> dict[str, tuple[int, ...]]:
    return side_shapes(segment_table(config), config, spec)


def without_dropped(weights: Weights, masks: Mapping[str, Tensor], config: ModelConfig) -> Weights:
    """The (compact or full) weights with the outputs of masked heads and units at zero."""
    factors = {}
    for name, mask in masks.items():
        _, block, kind = name.split(".")
        factors[f"{kind}.{block}"] = mask.float()
    return scale_outputs(weights, factors, config)


# ---------------------------------------------------------------- bits on the wire


def pack_bits(masks: Mapping[str, Tensor]) -> Tensor:
    """All masks in the order of their names, eight entries a byte."""
    bits = [masks[name].flatten().cpu().numpy().astype(np.uint8) for name in sorted(masks)]
    return torch.from_numpy(np.packbits(np.concatenate(bits) if bits else np.zeros(0, np.uint8)))


def unpack_bits(packed: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> Weights:
    """The counterpart, as probabilities: a set bit is 0.99, another 0.01."""
    bits = torch.from_numpy(np.unpackbits(packed.numpy()).astype(np.float32))
    masks: Weights = {}
    start = 0
    for name in sorted(shapes):
        size = math.prod(shapes[name])
        masks[name] = bits[start : start + size].view(shapes[name]) * (2 * SURE - 1) + (1 - SURE)
        start += size
    return masks
