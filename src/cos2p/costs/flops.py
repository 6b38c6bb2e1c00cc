"""FLOPs of a submodel: a multiply and an add are two. Attention and exits included; norms and activations not.

A linear layer of p weights costs 2·p a token forward, as much again for the gradient of its input, and as much again
for that of its weights. Attention costs two products of T×T a head forward, and five backward (the kernel computes
its scores again instead of keeping them).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from cos2p.costs.shape import Shape, Workload
from cos2p.models.config import ModelConfig
from cos2p.models.spec import BlockSize

Phase = Literal["prefix", "mask", "weight"]


def _linear(config: ModelConfig, size: BlockSize) -> tuple[float, float, float]:
    """Weights of a block's matrices: q, k, v; o; the MLP."""
    query = size.heads * config.queries_per_group * config.head_dim
    key = size.heads * config.head_dim
    mlp = (3 if config.gated else 2) * size.units
    return (query + 2 * key) * config.dim, query * config.dim, mlp * config.dim


def _product(config: ModelConfig, size: BlockSize, tokens: int) -> float:
    """One T×T product of all heads, per sample. A causal kernel computes about half of it."""
    query = size.heads * config.queries_per_group * config.head_dim
    return 2.0 * tokens * tokens * query * (0.5 if config.family == "llama" else 1.0)


def block_forward(config: ModelConfig, size: BlockSize, tokens: int) -> float:
    """One sample through one block."""
    return 2.0 * tokens * sum(_linear(config, size)) + 2 * _product(config, size, tokens)


def embedding_forward(config: ModelConfig) -> float:
    """One image through the patch embedding; looking up a token is free."""
    if config.family != "vit":
        return 0.0
    return 2.0 * (config.tokens - 1) * config.dim * config.channels * config.patch**2


def exit_forward(config: ModelConfig, tokens: int, rows: int | None = None) -> float:
    """One sample through one exit; a language model's has so many rows of the output table (None: all)."""
    if config.task == "language-modeling":
        return 2.0 * tokens * config.dim * (config.vocab if rows is None else rows)
    pooler = config.dim**2 if config.pooler != "none" else 0
    return 2.0 * (pooler + config.dim * config.classes)


def prefix_forward(config: ModelConfig, shape: Shape, tokens: int) -> float:
    """One sample through everything below the window."""
    if not shape.has_prefix:
        return 0.0
    return embedding_forward(config) + sum(block_forward(config, size, tokens) for size in shape.prefix)


def _input_gradient(config: ModelConfig, size: BlockSize, tokens: int) -> float:
    """Backward through segments that do not train."""
    return 2.0 * tokens * sum(_linear(config, size)) + 5 * _product(config, size, tokens)


def streamed_block(config: ModelConfig, tokens: int) -> float:
    """One sample through a frozen block that keeps its input alone: forward twice, and the gradient through it."""
    full = BlockSize.full(config)
    return 2 * block_forward(config, full, tokens) + _input_gradient(config, full, tokens)


def _weight_step(config: ModelConfig, shape: Shape, tokens: int, recompute: bool) -> float:
    again = (*shape.window, *shape.others(config)) if recompute else ()
    total = sum(block_forward(config, size, tokens) for size in again)
    total += shape.above * streamed_block(config, tokens)
    if not shape.has_prefix:
        total += 2 * embedding_forward(config)  # an image needs no gradient
    for size in shape.window:
        total += 3 * 2.0 * tokens * sum(_linear(config, size)) + 7 * _product(config, size, tokens)
    for size in shape.others(config):
        total += block_forward(config, size, tokens) + _input_gradient(config, size, tokens)
    if shape.has_prefix and not config.pre_norm:  # without a norm before it the first block's input needs no gradient
        total -= 2.0 * tokens * _linear(config, shape.window[0])[0]
    # A tied table above a frozen prefix is frozen too: no gradient of its own.
    frozen_table = config.task == "language-modeling" and config.tied and shape.has_prefix
    return total + (2 if frozen_table else 3) * len(shape.exits) * exit_forward(config, tokens, shape.rows)


def _mask_step(config: ModelConfig, shape: Shape, tokens: int) -> float:
    """Weights are frozen, so backward is for the gates alone: it ends at the first block's attention output."""
    total = 0.0 if shape.has_prefix else embedding_forward(config)
    total += shape.above * streamed_block(config, tokens)
    for i, size in enumerate(shape.window):
        into_heads, out_of_heads, mlp = _linear(config, size)
        total += block_forward(config, size, tokens) + 2.0 * tokens * (out_of_heads + mlp)
        if i > 0:
            total += 2.0 * tokens * into_heads + 5 * _product(config, size, tokens)
    for i, size in enumerate(shape.others(config)):
        total += block_forward(config, size, tokens) + (_input_gradient(config, size, tokens) if i > 0 else 0.0)
    # Every exit of the spec runs; the deepest alone is trained through.
    return total + (len(shape.exits) + 1) * exit_forward(config, tokens, shape.rows)


@lru_cache(maxsize=1024)
def shape_flops(config: ModelConfig, shape: Shape, workload: Workload, phase: Phase = "weight") -> float:
    """Forward and backward of one step on one batch ("mask", "weight"), or the one pass of the shard ("prefix").

    In the mask phase `shape` is that of the candidates.
    """
    tokens = workload.length(config)
    if phase == "prefix":
        return workload.shard * prefix_forward(config, shape, tokens)
    if phase == "mask":
        return workload.batch * _mask_step(config, shape, tokens)
    return workload.batch * _weight_step(config, shape, tokens, workload.recompute)
