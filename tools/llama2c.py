"""LLaMA checkpoints of llama2.c (`stories260K.bin`, ...): version 0, seven int32 and then float32 tensors.

The header is dim, mlp, depth, heads, kv_heads, vocab (negative if the output table is not the embedding) and
max_tokens. Each kind of tensor follows for all blocks at once; two unused rotary tables come before the output table.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cos2p.errors import CheckpointError, ConfigError
from cos2p.models.config import ModelConfig
from cos2p.models.hub import fill_exits
from cos2p.models.layout import Weights, block_parameters, layout

_HEADER = 7
# Order in the file, without the embedding before and the final norm after. w1 is the gate, w3 the up projection.
_BLOCK_ORDER = ("norm1", "q", "k", "v", "o", "norm2", "gate", "fc2", "fc1")


def load_llama2c(path: str | Path) -> tuple[ModelConfig, Weights]:
    """Read a language model, or raise CheckpointError. See `exit_bank` for the exits."""
    try:
        raw = np.fromfile(path, dtype="<f4")
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    config = _config(raw[:_HEADER].view("<i4").tolist(), path)
    expected = _HEADER + _numbers(config)
    if len(raw) != expected:
        raise CheckpointError(f"{path} holds {len(raw)} numbers, its header says {expected}; download it again")
    values: Weights = {}
    start = _HEADER
    for name in _order(config):
        if name == "lm_head.weight":
            start += _rotary_numbers(config)
        shape = layout(config)[name].shape
        count = prod(shape)
        values[name] = torch.from_numpy(raw[start : start + count].copy()).view(shape)
        start += count
    for block in range(config.depth):
        for name, heads in (("q", config.heads), ("k", config.kv_heads)):
            key = f"blocks.{block}.{name}.weight"
            values[key] = half_rotation(values[key], heads)
    values |= fill_exits(config, {"norm.weight": values[f"exits.{config.depth}.norm.weight"]}, seed=0)
    return config, {name: values[name] for name in layout(config)}


def half_rotation(rows_RD: Tensor, heads: int) -> Tensor:
    """From rotary pairs that lie side by side (0, 1), (2, 3), ... to pairs half a head apart, as this model rotates.

    >>> half_rotation(torch.arange(4.0)[:, None], heads=1).flatten().tolist()
    [0.0, 2.0, 1.0, 3.0]
    """
    rows, width = rows_RD.shape
    return rows_RD.view(heads, rows // heads // 2, 2, width).transpose(1, 2).reshape(rows, width)


def _config(header: list[int], path: str | Path) -> ModelConfig:
    if len(header) < _HEADER:
        raise CheckpointError(f"{path} is too short for a llama2.c checkpoint: its header has {_HEADER} numbers")
    dim, mlp, depth, heads, kv_heads, vocab, max_tokens = header
    try:
        return ModelConfig(
            "llama", dim=dim, depth=depth, heads=heads, mlp=mlp, kv_heads=kv_heads, vocab=abs(vocab),
            max_tokens=max_tokens, task="language-modeling", tied=vocab > 0,
        )  # fmt: skip
    except ConfigError as error:
        raise CheckpointError(f"{path} is not a llama2.c checkpoint of version 0: {error}") from None


def _numbers(config: ModelConfig) -> int:
    """Float32 numbers behind the header, counted without building a table: a garbled header may say anything."""
    block = sum(prod(parameter.shape) for parameter in block_parameters(config).values())
    tables = (1 if config.tied else 2) * config.vocab * config.dim
    return tables + config.depth * block + config.dim + _rotary_numbers(config)


def _rotary_numbers(config: ModelConfig) -> int:
    return config.max_tokens * config.head_dim


def _order(config: ModelConfig) -> Iterator[str]:
    yield "embed.tokens"
    for name in _BLOCK_ORDER:
        yield from (f"blocks.{block}.{name}.weight" for block in range(config.depth))
    yield f"exits.{config.depth}.norm.weight"
    if not config.tied:
        yield "lm_head.weight"
