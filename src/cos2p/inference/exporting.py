"""A trained model for other programs: a Hugging Face folder, ONNX, or a PEFT adapter."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from cos2p.errors import ConfigError, MissingExtra, RunError
from cos2p.inference.sources import Trained
from cos2p.models.hub_export import coloured, readable_by_all, write_inputs
from cos2p.runtime.card import model_card, plain_card
from cos2p.runtime.model_folder import save_adapters, save_model, tokenizer_file
from cos2p.runtime.usage import usage

FORMATS = ("hf", "onnx", "peft")


def export(trained: Trained, out: Path, form: str) -> Path:
    """Write the model into the folder `out`, which must be new or empty; returns what was written."""
    if form not in FORMATS:
        raise ConfigError(f"--format {form!r} is not known; there are {', '.join(FORMATS)}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(f"{out} exists and is not empty; choose another folder with -o")
    if form == "onnx":
        return _to_onnx(trained, out)
    if trained.recipe is None:
        raise ConfigError(f"{trained.where} is a Hugging Face folder already; from there only ONNX can be made")
    if form == "peft" and not any(".adapters." in name for name in trained.weights):
        raise ConfigError(f"{trained.result.get('title', 'the method')} trains no adapter; export it as hf or onnx")
    write = save_adapters if form == "peft" else save_model
    recipe, config, weights = trained.recipe, trained.config, trained.weights
    return write(out, recipe, config, weights, trained.result, trained.exit, trained.device, trained.data)


def _to_onnx(trained: Trained, out: Path) -> Path:
    try:
        from cos2p.inference.onnx_file import write_onnx
    except ImportError as error:
        raise MissingExtra(f"ONNX needs {error.name}; install cos2p[onnx]") from None
    grey = trained.config.family == "vit" and trained.config.channels == 1
    out.mkdir(parents=True, exist_ok=True)
    write_onnx(_for_colour(trained) if grey else trained, out / "model.onnx")
    pretrained = trained.recipe.model.pretrained if trained.recipe is not None else ""
    tokenizer = tokenizer_file(trained.data, pretrained, out) if trained.is_text else None
    card = _onnx_card(trained, tokenizer is not None)
    write_inputs(out, trained.config, trained.data.normalize, trained.data.crop, tokenizer, card)
    if trained.classes:
        names = {str(number): name for number, name in enumerate(trained.classes)}
        (out / "config.json").write_text(json.dumps({"id2label": names}, indent=2) + "\n", encoding="utf-8")
    readable_by_all(out)
    return out


def _onnx_card(trained: Trained, has_tokenizer: bool) -> str:
    config = trained.config
    use = usage(config, "onnx", crop=trained.data.crop, has_tokenizer=has_tokenizer)
    if trained.recipe is None:
        return plain_card(Path(trained.where).resolve().name, use)
    return model_card(trained.recipe, config, trained.result, use, trained.exit, trained.device)


def _for_colour(trained: Trained) -> Trained:
    """Programs show images in colour; the model sees their luma, as in a Hugging Face folder."""
    weights = {**trained.weights, "embed.patch.weight": coloured(trained.weights["embed.patch.weight"])}
    return replace(trained, config=trained.config.with_(channels=3), weights=weights)
