"""The `[model]` table of a recipe."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from cos2p.models.config import ExitKind, ModelConfig, Pooling
from cos2p.models.sizes import model_config
from cos2p.settings import Settings


class ModelSettings(Settings):
    """A named size, any field of which can be changed; or a Hugging Face checkpoint."""

    size: str = Field(default="vit-nano", description="Named size: `vit-tiny`, `vit-base`, `bert-small` ...")
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
