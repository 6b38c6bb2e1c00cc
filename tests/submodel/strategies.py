"""Small random models and specs for property tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from cos2p import ModelConfig, SubmodelSpec
from cos2p.models.layout import Weights, layout
from cos2p.models.spec import BlockKeep
from cos2p.seeding import torch_rng

_TEXT: dict[str, Any] = {"vocab": 20, "max_tokens": 6}

CONFIGS: dict[str, ModelConfig] = {
    "vit": ModelConfig("vit", dim=16, depth=4, heads=4, mlp=10, classes=3, image=4, patch=2, channels=1),
    "vit shared exit": ModelConfig(
        "vit", dim=16, depth=4, heads=2, mlp=10, classes=3, image=4, patch=2, channels=1, exits="shared"
    ),
    "bert": ModelConfig("bert", dim=16, depth=4, heads=4, mlp=10, classes=3, **_TEXT),
    "vit mean": ModelConfig(
        "vit", dim=16, depth=4, heads=4, mlp=10, classes=3, image=4, patch=2, channels=1, pooling="mean"
    ),
    "bert mean": ModelConfig("bert", dim=16, depth=4, heads=4, mlp=10, classes=3, pooling="mean", **_TEXT),
    "llama classification": ModelConfig("llama", dim=16, depth=4, heads=8, kv_heads=4, mlp=10, classes=3, **_TEXT),
    "llama normed heads": ModelConfig(
        "llama", dim=16, depth=4, heads=4, kv_heads=2, mlp=10, classes=3, attention_bias="all", qk_norm=True, **_TEXT
    ),
    "llama tied": ModelConfig("llama", dim=16, depth=4, heads=4, kv_heads=2, mlp=10, task="language-modeling", **_TEXT),
    "llama untied": ModelConfig(
        "llama", dim=16, depth=4, heads=4, head_dim=6, mlp=10, task="language-modeling", tied=False, **_TEXT
    ),
}

configs = st.sampled_from(list(CONFIGS.values()))
seeds = st.integers(0, 2**31)


def _subset(size: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Any ascending subset; nothing and everything often enough to be met."""
    some = st.sets(st.integers(0, size - 1)).map(lambda kept: tuple(sorted(kept)))
    return st.one_of(some, st.just(()), st.just(tuple(range(size))))


def keeps(config: ModelConfig) -> st.SearchStrategy[BlockKeep]:
    return st.builds(BlockKeep, _subset(config.groups), _subset(config.mlp))


@st.composite
def specs(draw: st.DrawFn, config: ModelConfig, least_frozen: int = 0) -> SubmodelSpec:
    """What does not train is below the window or removed."""
    frozen = draw(st.integers(least_frozen, config.depth - 1))
    top = draw(st.integers(frozen + 1, config.depth))
    window = tuple(draw(keeps(config)) for _ in range(frozen, top))
    exits = draw(st.sets(st.integers(frozen + 1, top))) | {top}
    return SubmodelSpec(frozen, window, tuple(sorted(exits))).check(config)


@st.composite
def specs_around(draw: st.DrawFn, config: ModelConfig) -> SubmodelSpec:
    """What does not train may stay inside and above the window, and of a token table some rows."""
    plain = draw(specs(config))
    exits, top, suffix = set(plain.exits), plain.top, draw(st.booleans())
    if suffix:
        exits |= {config.depth}
        exits -= {top} if draw(st.booleans()) and top < config.depth else set()
    rows = None
    if config.vocab and draw(st.booleans()):  # the padding's row is always among them
        rows = tuple(sorted({*draw(_subset(config.vocab)), config.pad_token}))
    return replace(
        plain,
        exits=tuple(sorted(exits)),
        rest=draw(st.booleans()),
        suffix=suffix,
        rows=rows,
        fixed_embeddings=draw(st.booleans()),
    ).check(config)


@st.composite
def submodels(draw: st.DrawFn, least_frozen: int = 0) -> tuple[ModelConfig, SubmodelSpec, int]:
    """A model, a part of it, and a seed for values."""
    config = draw(configs)
    return config, draw(specs(config, least_frozen)), draw(seeds)


@st.composite
def submodels_around(draw: st.DrawFn) -> tuple[ModelConfig, SubmodelSpec, int]:
    config = draw(configs)
    return config, draw(specs_around(config)), draw(seeds)


def random_weights(config: ModelConfig, seed: int) -> Weights:
    """Every tensor random and of a size that matters, biases and norms too: no difference can hide behind a zero."""
    weights = {}
    for name, p in layout(config).items():
        noise = torch.randn(p.shape, generator=torch_rng(seed, "test weights", name)) * 0.3
        weights[name] = noise + 1 if "norm" in name and name.endswith("weight") else noise
    return weights


def random_inputs(config: ModelConfig, seed: int, batch: int = 3, rows: tuple[int, ...] | None = None) -> Tensor:
    """Images, or token ids (among `rows`, if given) padded on the right to different lengths."""
    rng = torch_rng(seed, "test inputs")
    if config.family == "vit":
        return torch.randn(batch, config.channels, config.image, config.image, generator=rng)
    ids = torch.randint(1, config.vocab, (batch, config.max_tokens), generator=rng)
    if rows is not None:
        ids = torch.tensor(rows)[ids % len(rows)]
    lengths = torch.randint(1, config.max_tokens + 1, (batch, 1), generator=rng)
    return ids.masked_fill(torch.arange(config.max_tokens) >= lengths, config.pad_token)
