"""A run's model as a Hugging Face folder, complete: weights, class names, how inputs are prepared, a card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cos2p.data.paths import find
from cos2p.data.tokenizers import byte_tokenizer, resolved
from cos2p.errors import CheckpointError, DataError
from cos2p.methods import Method, method_class
from cos2p.models.config import ModelConfig
from cos2p.models.hub import save_pretrained
from cos2p.models.layout import Weights
from cos2p.recipe import Recipe
from cos2p.runtime.card import model_card


def save_model(
    folder: Path,
    recipe: Recipe,
    config: ModelConfig,
    weights: Weights,
    result: Mapping[str, Any],
    exit: int | None = None,
    device: str = "",
) -> Path:
    """Write the model with the head of depth `exit` (all blocks by default); returns the folder.

    `weights` are as the method evaluates them, or those of the device of that name. CheckpointError for a smaller model
    whose heads do not fill its width: it has no form there.
    """
    method = Method if device else method_class(recipe.method["name"])
    if method.evaluation_model.__func__ is not Method.evaluation_model.__func__:  # type: ignore[attr-defined]
        raise CheckpointError(
            f"{result['title']} answers by a forward pass of its own, which no Hugging Face type has; "
            "use it with cos2p predict, or export it as ONNX"
        )
    fitted = method.evaluation_config(config, weights)
    if fitted != config and fitted.heads * fitted.head_dim != fitted.dim:
        raise CheckpointError(
            f"{result['title']} leaves {fitted.heads} heads of {fitted.head_dim} in a width of {fitted.dim}, "
            "which no Hugging Face type has; use it with cos2p predict, or export it as ONNX"
        )
    images, exit = config.family == "vit", fitted.depth if exit is None else exit
    folder.mkdir(parents=True, exist_ok=True)
    return save_pretrained(
        folder,
        fitted,
        weights,
        exit,
        labels=result["classes"] or None,
        normalize=recipe.data.normalize if images else None,
        crop=recipe.data.crop,
        tokenizer=None if images else _tokenizer(recipe, folder),
        card=model_card(recipe, fitted, result, exit, device),
    )


def _tokenizer(recipe: Recipe, folder: Path) -> Path | None:
    """The file by which texts become ids; one is written for bytes. None where the run's files are not at hand (a
    fleet's admin)."""
    try:
        named = resolved(recipe.data, recipe.model.pretrained).tokenizer
        if named != "bytes":
            return find(named)
    except DataError:
        return None
    file = folder / "tokenizer.json"
    file.write_text(byte_tokenizer(), encoding="utf-8")
    return file
