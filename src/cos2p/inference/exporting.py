"""A trained model for other programs: a Hugging Face folder, ONNX, or a PEFT adapter."""

from __future__ import annotations

import json
import logging
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cos2p.errors import CheckpointError, ConfigError, RunError
from cos2p.extras import extra
from cos2p.inference.sources import Trained
from cos2p.models.hub_export import coloured, readable_by_all, write_inputs
from cos2p.runtime.model_folder import CARD_TAG, model_card, plain_card, save_adapters, save_model, tokenizer_file
from cos2p.runtime.usage import usage
from cos2p.seeding import torch_rng

FORMATS = ("hf", "onnx", "peft")


def export(trained: Trained, out: Path, form: str, overwrite: bool = False) -> Path:
    """Write the model into the folder `out`: new, empty, or an earlier export to `overwrite`; returns it."""
    if form not in FORMATS:
        raise ConfigError(f"--format {form!r} is not known; there are {', '.join(FORMATS)}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        card = out / "README.md"
        if not card.is_file() or CARD_TAG not in card.read_text(encoding="utf-8", errors="replace"):
            raise RunError(f"{out} is not empty, holds no export, and was left alone; choose another folder")
        if not overwrite:
            raise RunError(
                f"{out} holds an export; replace it by --overwrite (overwrite=True) or choose another folder"
            )
    if form == "onnx":
        return _to_onnx(trained, out)
    if trained.recipe is None:
        raise ConfigError(f"{trained.where} is a Hugging Face folder already; from there only ONNX can be made")
    if form == "peft" and not any(".adapters." in name for name in trained.weights):
        raise ConfigError(f"{trained.result.get('title', 'the method')} trains no adapter; export it as hf or onnx")
    _clear(out)
    write = save_adapters if form == "peft" else save_model
    recipe, config, weights = trained.recipe, trained.config, trained.weights
    return write(out, recipe, config, weights, trained.result, trained.exit, trained.device, trained.data)


def _clear(folder: Path) -> None:
    """Hidden files, such as a repository of the hub, stay."""
    for own in folder.glob("[!.]*"):
        shutil.rmtree(own) if own.is_dir() and not own.is_symlink() else own.unlink()


def _to_onnx(trained: Trained, out: Path) -> Path:
    for package in ("onnx", "onnxscript", "onnxruntime"):  # torch's exporter says so only in a traceback
        extra(package, "onnx", "ONNX")
    grey = trained.config.family == "vit" and trained.config.channels == 1
    out.mkdir(parents=True, exist_ok=True)
    _clear(out)
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


# The model as an ONNX file, compared with torch before it is handed over.


TOLERANCE = 1e-4
"""Largest difference of a logit, for logits of the size of one; larger ones in proportion."""
_INLINE_BYTES = 1_500_000_000
"""Protobuf ends at 2 GB; larger weights lie in a file next to it."""


class _Answers(nn.Module):
    """The chosen exit alone."""

    def __init__(self, trained: Trained) -> None:
        super().__init__()
        self.model = trained.model

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs)[0]  # type: ignore[no-any-return]


def write_onnx(trained: Trained, file: Path) -> None:
    """`pixel_values` (prepared images) or `input_ids` to `logits`, for any batch and length; CheckpointError if ONNX
    Runtime answers otherwise than torch."""
    name = "input_ids" if trained.is_text else "pixel_values"
    dynamic: dict[int, Any] = {0: torch.export.Dim("batch")}
    if trained.is_text:
        dynamic[1] = torch.export.Dim("tokens", min=2, max=trained.config.max_tokens)
    size = sum(tensor.nbytes for tensor in trained.weights.values())
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of the exporter's own doings
        torch.onnx.export(
            _Answers(trained).eval(),
            (_samples(trained, 3, 0),),
            file,
            dynamo=True,
            verbose=False,
            input_names=[name],
            output_names=["logits"],
            dynamic_shapes=(dynamic,),
            external_data=size > _INLINE_BYTES,
        )
    _compare(trained, file, name)


def _compare(trained: Trained, file: Path, name: str) -> None:
    session = extra("onnxruntime", "onnx", "ONNX").InferenceSession(str(file), providers=["CPUExecutionProvider"])
    for count in (1, 4):
        inputs = _samples(trained, count, count)
        ours = trained.outputs(inputs).numpy()
        theirs = session.run(None, {name: inputs.numpy()})[0]
        worst = float(np.max(np.abs(ours - theirs) / np.maximum(1.0, np.abs(ours))))
        if not worst <= TOLERANCE:
            file.unlink()
            raise CheckpointError(f"ONNX Runtime answers otherwise than torch (by {worst:.1e}); nothing was written")


def _samples(trained: Trained, count: int, seed: int) -> Tensor:
    rng, config = torch_rng(seed, "onnx"), trained.config
    if not trained.is_text:
        return torch.randn(count, config.channels, config.image, config.image, generator=rng)
    tokens = min(config.max_tokens, 8)
    ids = torch.randint(config.vocab, (count, tokens), generator=rng)
    return ids.masked_fill(ids == config.pad_token, (config.pad_token + 1) % config.vocab)
