"""Named sizes: the paper's models, and nano ones that train in seconds."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from cos2p.errors import ConfigError
from cos2p.models.config import ModelConfig

SIZES: dict[str, ModelConfig] = {
    # The paper's three vision transformers (its Tab. "model variants"), 200 and 300 ImageNet classes.
    "vit-tiny": ModelConfig("vit", dim=512, depth=8, heads=8, mlp=2048, classes=200),
    "vit-base": ModelConfig("vit", dim=768, depth=12, heads=12, mlp=3072, classes=300),
    "vit-base-ext": ModelConfig("vit", dim=768, depth=16, heads=12, mlp=3072, classes=300),
    # The paper's text model (AG News has 4 classes), BERT's uncased vocabulary.
    "bert-small": ModelConfig("bert", dim=512, depth=4, heads=8, mlp=2048, classes=4, vocab=30522),
    # TinyLlama's shape.
    "llama-1.1b": ModelConfig(
        "llama", dim=2048, depth=22, heads=32, kv_heads=4, mlp=5632, vocab=32000, max_tokens=2048,
        task="language-modeling", tied=False,
    ),
    # For tests, demonstrations and the mini recipes.
    "vit-nano": ModelConfig("vit", dim=64, depth=8, heads=8, mlp=256, classes=10, image=8, patch=2, channels=1),
    "vit-mini": ModelConfig("vit", dim=64, depth=8, heads=8, mlp=256, classes=10, image=28, patch=4, channels=1),
    "bert-nano": ModelConfig("bert", dim=64, depth=4, heads=8, mlp=256, classes=4, vocab=512, max_tokens=64),
    "llama-nano": ModelConfig(
        "llama", dim=64, depth=4, heads=8, kv_heads=4, mlp=160, vocab=512, max_tokens=64, task="language-modeling"
    ),
}  # fmt: skip


def model_config(name: str, **changes: Any) -> ModelConfig:
    """A named size, with any field changed.

    >>> model_config("vit-base").depth, model_config("vit-base", classes=10).classes
    (12, 10)
    """
    if name not in SIZES:
        close = get_close_matches(name, SIZES, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ConfigError(f"unknown model size {name!r}; {hint}known: {', '.join(sorted(SIZES))}")
    return SIZES[name].with_(**changes) if changes else SIZES[name]
