"""The `[model]` table of a recipe, and named sizes: the paper's models, and nano ones that train in seconds."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from cos2p.errors import ConfigError
from cos2p.models.config import ExitKind, ModelConfig, Pooling
from cos2p.settings import Settings

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
        raise ConfigError(
            f"unknown model size {name!r}; {hint}known: {', '.join(sorted(SIZES))}; "
            "a checkpoint is named by its folder (./dinov2-small) or its hub name (org/name)"
        )
    return SIZES[name].with_(**changes) if changes else SIZES[name]


def _known(size: str) -> str:
    try:
        model_config(size)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return size


class ModelSettings(Settings):
    """A named size, any field of which can be changed; or a Hugging Face checkpoint."""

    size: Annotated[str, AfterValidator(_known)] = Field(
        default="vit-nano",
        description="Named size: `vit-tiny`, `vit-base`, `bert-small` ...",
    )
    pretrained: str = Field(
        default="",
        description="Hugging Face checkpoint: a folder, looked up here and below $COS2P_DATA (~ and ${VAR} are "
        "expanded), or a hub name; empty: fresh.",
    )
    dim: int | None = Field(default=None, ge=1, description="Residual width.")
    depth: int | None = Field(default=None, ge=1, description="Number of blocks L.")
    heads: int | None = Field(default=None, ge=1, description="Attention heads per block.")
    kv_heads: int | None = Field(default=None, ge=1, description="Key/value heads (llama).")
    mlp: int | None = Field(default=None, ge=1, description="MLP units per block.")
    patch: int | None = Field(default=None, ge=1, description="Edge of a patch in pixels.")
    exits: ExitKind | None = Field(default=None, description="`bank`: an exit per depth; `shared`: one for all.")
    pooling: Pooling | None = Field(
        default=None,
        description="What a classifier reads: the `cls` token, the `last` one, or the `mean` of all real tokens. "
        "Empty: what the checkpoint says. One that does not say is read in the way whose head in closed form is better "
        "on held-out samples; a fresh model has the habit of its family.",
    )

    @property
    def chosen(self) -> dict[str, Any]:
        """The fields that are set, as those of a `ModelConfig`."""
        return self.model_dump(exclude={"size", "pretrained"}, exclude_none=True)

    def config(self, **facts: Any) -> ModelConfig:
        """The model's shape; `facts` are what the data says (task, classes, channels, vocabulary)."""
        return model_config(self.size, **{**facts, **self.chosen})
