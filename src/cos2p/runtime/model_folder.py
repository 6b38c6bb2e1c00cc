"""A run's model as a folder for other programs, complete: weights, class names, how inputs are prepared, a card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cos2p.checksums import note_folder
from cos2p.data.config import DataConfig
from cos2p.data.paths import find
from cos2p.data.tokenizers import byte_tokenizer, resolved
from cos2p.errors import CheckpointError, DataError
from cos2p.methods import Method, method_class
from cos2p.models.config import ModelConfig
from cos2p.models.hub import save_pretrained
from cos2p.models.hub_adapter import fits_base, save_adapter
from cos2p.models.hub_config import is_native
from cos2p.models.hub_pooling import is_sentence_model
from cos2p.models.layout import Weights
from cos2p.recipe import Recipe
from cos2p.runtime.card import model_card
from cos2p.runtime.usage import usage


def save_model(
    folder: Path,
    recipe: Recipe,
    config: ModelConfig,
    weights: Weights,
    result: Mapping[str, Any],
    exit: int | None = None,
    device: str = "",
    data: DataConfig | None = None,
) -> Path:
    """Write the model with the head of depth `exit` (all blocks by default) as a Hugging Face folder; returns it.

    `weights` are as the method evaluates them, or those of the device of that name; `data` is how inputs are prepared,
    if it is not as the recipe says. CheckpointError for a model that has no form there.
    """
    fitted = _written_config(Method if device else method_class(recipe.method["name"]), config, weights, result)
    depth = fitted.depth if exit is None else exit
    inputs = _inputs(folder, recipe, data or recipe.data, fitted)
    tokenizer = inputs["tokenizer"]
    sentence = not is_native(fitted) and is_sentence_model(fitted, tokenizer)
    use = usage(fitted, sentence=sentence, crop=inputs["crop"], has_tokenizer=tokenizer is not None)
    card = model_card(recipe, fitted, result, use, depth, device)
    save_pretrained(folder, fitted, weights, depth, result["classes"] or None, card=card, **inputs)
    note_folder(folder, but=("README.md",))
    return folder


def save_adapters(
    folder: Path,
    recipe: Recipe,
    config: ModelConfig,
    weights: Weights,
    result: Mapping[str, Any],
    exit: int,
    device: str,
    data: DataConfig,
) -> Path:
    """Write the adapters among the weights, and the model they belong to unless a hub has exactly that one."""
    named = recipe.model.pretrained
    base = named if fits_base(named, config, weights, exit) else ""
    inputs = _inputs(folder, recipe, data, config)
    use = usage(config, "peft", base=base, crop=inputs["crop"], has_tokenizer=inputs["tokenizer"] is not None)
    card = model_card(recipe, config, result, use, exit, device)
    return save_adapter(folder, config, weights, base, result["classes"] or None, exit, card=card, **inputs)


def _written_config(
    method: type[Method], config: ModelConfig, weights: Weights, result: Mapping[str, Any]
) -> ModelConfig:
    """That of the model which the method evaluates; CheckpointError if no Hugging Face type computes it."""
    if method.own_model is not None:
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
    return fitted


def _inputs(folder: Path, recipe: Recipe, data: DataConfig, config: ModelConfig) -> dict[str, Any]:
    """How inputs are prepared, as arguments of `save_pretrained`."""
    images = config.family == "vit"
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "normalize": data.normalize if images else None,
        "crop": data.crop,
        "tokenizer": None if images else tokenizer_file(data, recipe.model.pretrained, folder),
    }


def tokenizer_file(data: DataConfig, pretrained: str, folder: Path) -> Path | None:
    """The file by which texts become ids; one is written into the folder for bytes. None where the run's files are not
    at hand (a fleet's admin)."""
    try:
        named = resolved(data, pretrained).tokenizer
        if named != "bytes":
            found = find(named)
            return found / "tokenizer.json" if found.is_dir() else found
    except DataError:
        return None
    file = folder / "tokenizer.json"
    file.write_text(byte_tokenizer(), encoding="utf-8")
    return file
