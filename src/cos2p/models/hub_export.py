"""What a Hugging Face folder needs beside its weights so that `transformers.pipeline` predicts what was evaluated here.

Images: `preprocessor_config.json`. Texts: the tokenizer. For people: a model card. A pipeline shows every image in
colour, so a model of grey images is written with three channels, weighed as Pillow weighs them to make an image grey.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from tokenizers import Tokenizer
from torch import Tensor

from cos2p.errors import CheckpointError
from cos2p.models.config import ModelConfig
from cos2p.models.hub_files import read_json

Crop = Literal["center", "stretch"]
"""How an image that is not square becomes so: its middle is cut out, or both edges are scaled."""
GREY_FIELD = "cos2p_grey"
_LUMA = (0.299, 0.587, 0.114)
_BILINEAR = 2
_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
    "vocab.json", "merges.txt", "tokenizer.model",
)  # fmt: skip
_FILES = (
    *_TOKENIZER_FILES, "config.json", "model.safetensors", "preprocessor_config.json", "README.md", "modules.json",
    "sentence_bert_config.json", "1_Pooling/config.json", "2_Dense/*",
)  # fmt: skip


class Normalization(Protocol):
    """Per-channel (x - mean) / std, for x in 0..1; one number serves all channels."""

    @property
    def mean(self) -> tuple[float, ...]: ...
    @property
    def std(self) -> tuple[float, ...]: ...


def in_colour(patch_DCHW: Tensor) -> Tensor:
    """The patch embedding of a grey model for colour images: it sees their luma."""
    return patch_DCHW * torch.tensor(_LUMA, dtype=patch_DCHW.dtype).view(1, 3, 1, 1)


def write_preprocessor(folder: Path, config: ModelConfig, normalize: Normalization, crop: Crop) -> None:
    """Bring to the model's square, divide by 255, normalise: as the data were prepared."""
    channels = max(config.channels, 3)
    square = {"height": config.image, "width": config.image}
    # ViT's own processor knows no crop, Bit's (DINOv2's too) scales the shorter edge and cuts the middle out.
    sized: dict[str, Any] = {"image_processor_type": "ViTImageProcessor", "size": square}
    if crop == "center":
        sized = {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": config.image}}
        sized |= {"do_center_crop": True, "crop_size": square}
    values: dict[str, Any] = sized | {
        "do_convert_rgb": True,
        "do_resize": True,
        "resample": _BILINEAR,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
    }
    for name, numbers in (("image_mean", normalize.mean), ("image_std", normalize.std)):
        values[name] = list(numbers) * channels if len(numbers) == 1 else list(numbers)
    _write_json(folder / "preprocessor_config.json", values)


def stored_normalization(folder: Path) -> dict[str, tuple[float, ...]]:
    """`mean` and `std` as a checkpoint's `preprocessor_config.json` says: one number, or one per channel. Empty without
    the file."""
    file = folder / "preprocessor_config.json"
    if not file.is_file():
        return {}
    values = read_json(file)
    if not values.get("do_normalize", True):
        return {"mean": (0.0,), "std": (1.0,)}
    return {"mean": _numbers(values, "image_mean", file, 0.0), "std": _numbers(values, "image_std", file, 1.0)}


def _numbers(values: dict[str, Any], field: str, file: Path, default: float) -> tuple[float, ...]:
    given = values.get(field) or [default]
    numbers = given if isinstance(given, list) else [given]
    if len(numbers) not in (1, 3) or not all(type(number) in (int, float) for number in numbers):
        raise CheckpointError(f"{file}: {field} is {given!r}; it must be one number, or three")
    return tuple(map(float, numbers[:1] if len(set(numbers)) == 1 else numbers))


def write_tokenizer(folder: Path, config: ModelConfig, tokenizer: str | Path) -> None:
    """Copy a tokenizer: a `tokenizer.json`, or the folder of one with what else is there."""
    path = Path(tokenizer)
    source = path if path.is_dir() else path.parent
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise CheckpointError(f"no tokenizer.json at {tokenizer}; name the file or its folder")
    for name in _TOKENIZER_FILES if path.is_dir() else ():
        if (source / name).is_file() and source.resolve() != folder.resolve():
            shutil.copyfile(source / name, folder / name)
    if file.resolve() != (folder / "tokenizer.json").resolve():
        shutil.copyfile(file, folder / "tokenizer.json")
    if not (folder / "tokenizer_config.json").is_file():
        known: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": config.max_tokens}
        padding = Tokenizer.from_file(str(file)).id_to_token(config.pad_token) if config.pad_token >= 0 else None
        _write_json(folder / "tokenizer_config.json", known | ({"pad_token": padding} if padding else {}))


def readable_by_all(folder: Path) -> None:
    """The files of the model 0644, whatever else is in the folder: a model is made to be passed on."""
    for name in _FILES:
        for path in folder.glob(name):
            path.chmod(0o644)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
