"""A model's tensors: their names, how big they are, and along which axis each can be cut.

This table is the one place that knows where the segments lie. Shapes, slicing, segment sums, merging, bytes and
FLOPs are all read off it. A segment is an attention head (with grouped queries: a KV head and its query heads) or
an MLP unit; residual width is never cut.

    blocks.i.q          rows    QUERY     blocks.i.o     columns  QUERY
    blocks.i.k, .v      rows    KEY       blocks.i.fc2   columns  UNIT
    blocks.i.fc1, .gate rows    UNIT      everything else is PLAIN: shared, never cut in width
    embed.tokens, lm_head       rows    ROW: a token's row is a segment too
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from types import MappingProxyType

import torch

from cos2p.models.config import ModelConfig
from cos2p.seeding import torch_rng

Weights = dict[str, torch.Tensor]


class Axis(Enum):
    """How an axis of a tensor is divided into segments."""

    PLAIN = "plain"
    QUERY = "query"
    """queries_per_group · head_dim entries for each attention segment"""
    KEY = "key"
    """head_dim entries for each attention segment"""
    UNIT = "unit"
    """one entry for each MLP unit"""
    ROW = "row"
    """one entry for each token of the vocabulary"""


@dataclass(frozen=True)
class Parameter:
    """Full shape of a tensor and the meaning of its axes."""

    shape: tuple[int, ...]
    axes: tuple[Axis, ...]

    @cached_property
    def cut(self) -> tuple[int, Axis] | None:
        """The one axis along which the tensor can be cut, if any."""
        for dim, axis in enumerate(self.axes):
            if axis is not Axis.PLAIN:
                return dim, axis
        return None

    @property
    def in_block(self) -> bool:
        """Whether its segments are heads or units, of which a block has some."""
        return self.cut is not None and self.cut[1] is not Axis.ROW


def segment_width(config: ModelConfig, axis: Axis) -> int:
    """Entries along `axis` that belong to one segment."""
    return {
        Axis.QUERY: config.queries_per_group * config.head_dim,
        Axis.KEY: config.head_dim,
        Axis.UNIT: 1,
        Axis.ROW: 1,
        Axis.PLAIN: 1,
    }[axis]


def _plain(*shape: int) -> Parameter:
    return Parameter(shape, (Axis.PLAIN,) * len(shape))


def _rows(config: ModelConfig) -> Parameter:
    return Parameter((config.vocab, config.dim), (Axis.ROW, Axis.PLAIN))


def _norm(config: ModelConfig, name: str) -> dict[str, Parameter]:
    table = {f"{name}.weight": _plain(config.dim)}
    if config.biased:
        table[f"{name}.bias"] = _plain(config.dim)
    return table


def block_parameters(config: ModelConfig) -> dict[str, Parameter]:
    """One block's tensors, by their names inside the block."""
    d = config.dim
    query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
    table = _norm(config, "norm1")
    for name, rows, axis in (("q", query, Axis.QUERY), ("k", key, Axis.KEY), ("v", key, Axis.KEY)):
        table[f"{name}.weight"] = Parameter((rows, d), (axis, Axis.PLAIN))
        if config.attention_bias != "none":
            table[f"{name}.bias"] = Parameter((rows,), (axis,))
    if config.qk_norm:  # all heads share them
        table |= {"q_norm.weight": _plain(config.head_dim), "k_norm.weight": _plain(config.head_dim)}
    table["o.weight"] = Parameter((d, query), (Axis.PLAIN, Axis.QUERY))
    if config.attention_bias == "all":
        table["o.bias"] = _plain(d)
    table |= _norm(config, "norm2")
    for name in ("fc1", "gate") if config.gated else ("fc1",):
        table[f"{name}.weight"] = Parameter((config.mlp, d), (Axis.UNIT, Axis.PLAIN))
        if config.biased:
            table[f"{name}.bias"] = Parameter((config.mlp,), (Axis.UNIT,))
    table["fc2.weight"] = Parameter((d, config.mlp), (Axis.PLAIN, Axis.UNIT))
    if config.biased:
        table["fc2.bias"] = _plain(d)
    return table


def embedding_parameters(config: ModelConfig) -> dict[str, Parameter]:
    d = config.dim
    if config.family == "vit":
        return {
            "patch.weight": _plain(d, config.channels, config.patch, config.patch),
            "patch.bias": _plain(d),
            "cls": _plain(1, 1, d),
            "positions": _plain(1, config.tokens, d),
        }
    table = {"tokens": _rows(config)}
    if config.family == "bert":
        table["positions"] = _plain(config.max_tokens, d)
        if config.token_types:
            table["types"] = _plain(config.token_types, d)
        table |= _norm(config, "norm")
    return table


def exit_parameters(config: ModelConfig) -> dict[str, Parameter]:
    """One exit: norm + linear; BERT has a pooler or nothing instead of the norm; a language model the norm alone."""
    d = config.dim
    table = {} if config.family == "bert" else _norm(config, "norm")
    if config.pooler != "none":
        table |= {"pooler.weight": _plain(d, d), "pooler.bias": _plain(d)}
    if config.task == "classification":
        table["linear.weight"] = _plain(config.classes, d)
        if config.biased:
            table["linear.bias"] = _plain(config.classes)
    return table


def exit_key(config: ModelConfig, depth: int) -> str:
    """Where the exit behind block `depth` keeps its tensors: `exits.8`, or `exits.shared` for all."""
    return "exits.shared" if config.exits == "shared" else f"exits.{depth}"


@lru_cache(maxsize=64)
def layout(config: ModelConfig) -> Mapping[str, Parameter]:
    """Every tensor of the full model, in a fixed order. Read-only."""
    table = {f"embed.{name}": p for name, p in embedding_parameters(config).items()}
    for i in range(config.depth):
        table |= {f"blocks.{i}.{name}": p for name, p in block_parameters(config).items()}
    for key in dict.fromkeys(exit_key(config, depth) for depth in range(1, config.depth + 1)):
        table |= {f"{key}.{name}": p for name, p in exit_parameters(config).items()}
    if config.task == "language-modeling" and not config.tied:
        table["lm_head.weight"] = _rows(config)
    return MappingProxyType(table)


def parameter_count(config: ModelConfig) -> int:
    """Scalars of the model a user would download: embeddings, blocks and the last exit (not the whole bank)."""
    last = exit_key(config, config.depth) + "."
    return sum(
        torch.Size(p.shape).numel()
        for name, p in layout(config).items()
        if not name.startswith("exits.") or name.startswith(last)
    )


def init_tensor(config: ModelConfig, name: str, seed: int) -> torch.Tensor:
    """Fresh values of one tensor, from a generator of its own name: no tensor depends on another's size.

    Matrices are normal with std 0.02·√(768/dim): the usual 0.02 at ViT-Base's width, and the same variance of
    activations at any other.
    """
    shape = layout(config)[name].shape
    if name.endswith((".bias", "embed.cls")):
        return torch.zeros(shape)
    if "norm" in name:
        return torch.ones(shape)
    table = name.startswith("embed.") and name != "embed.patch.weight"
    scale = 0.02 if table else 0.02 * (768 / config.dim) ** 0.5
    return torch.randn(shape, generator=torch_rng(seed, "init", name)) * scale


def init_weights(config: ModelConfig, seed: int) -> Weights:
    """Fresh weights for the whole model."""
    return {name: init_tensor(config, name, seed) for name in layout(config)}
