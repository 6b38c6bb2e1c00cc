"""A trained model for other programs: a Hugging Face folder, ONNX, or a PEFT adapter."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from cos2p.data.paths import find
from cos2p.data.tokenizers import byte_tokenizer
from cos2p.errors import ConfigError, MissingExtra, RunError
from cos2p.inference.sources import Trained
from cos2p.models.hub_adapter import save_adapter
from cos2p.models.hub_export import in_colour, readable_by_all, write_preprocessor, write_tokenizer
from cos2p.runtime.model_folder import save_model

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
    recipe, config = trained.recipe, trained.config
    if form == "peft":
        if not any(".adapters." in name for name in trained.weights):
            raise ConfigError(f"{trained.result.get('title', 'the method')} trains no adapter; export it as hf or onnx")
        return save_adapter(out, config, trained.weights, recipe.model.pretrained, trained.classes or None)
    return save_model(out, recipe, config, trained.weights, trained.result, trained.exit, trained.device)


def _to_onnx(trained: Trained, out: Path) -> Path:
    try:
        from cos2p.inference.onnx_file import write_onnx
    except ImportError as error:
        raise MissingExtra(f"ONNX needs {error.name}; install cos2p[onnx]") from None
    if trained.config.family == "vit" and trained.config.channels == 1:
        trained = _for_colour(trained)
    out.mkdir(parents=True, exist_ok=True)
    write_onnx(trained, out / "model.onnx")
    if trained.is_text:
        _write_tokenizer(trained, out)
    else:
        write_preprocessor(out, trained.config, trained.data.normalize, trained.data.crop)
    names = {str(number): name for number, name in enumerate(trained.classes)}
    (out / "config.json").write_text(json.dumps({"id2label": names}, indent=2) + "\n", encoding="utf-8")
    readable_by_all(out)
    return out


def _for_colour(trained: Trained) -> Trained:
    """Programs show images in colour; the model sees their luma, as in a Hugging Face folder."""
    patch = trained.weights["embed.patch.weight"]
    weights = {**trained.weights, "embed.patch.weight": in_colour(patch)}
    return replace(trained, config=trained.config.with_(channels=3), weights=weights)


def _write_tokenizer(trained: Trained, out: Path) -> None:
    if trained.data.tokenizer in ("", "auto", "bytes"):
        (out / "tokenizer.json").write_text(byte_tokenizer(), encoding="utf-8")
        write_tokenizer(out, trained.config, out / "tokenizer.json")
    else:
        write_tokenizer(out, trained.config, find(trained.data.tokenizer))
