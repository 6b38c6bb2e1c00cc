"""The files that a Hugging Face folder needs next to its weights so that `transformers.pipeline` predicts what was
evaluated here.

Images: `preprocessor_config.json`. Texts: the tokenizer. For people: a model card. A pipeline shows every image in
colour, so a model of grey images is written with three channels, weighed as Pillow weighs them to make an image grey.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from cos2p.data.chat import chat_template
from cos2p.data.tokenizers import around, end_of_text
from cos2p.errors import CheckpointError
from cos2p.extras import extra
from cos2p.models.config import ModelConfig
from cos2p.models.hub_files import read_json, write_json

Crop = Literal["center", "stretch"]
"""How an image that is not square becomes so: its middle is cut out, or both edges are scaled."""
GREY_FIELD = "cos2p_grey"
_LUMA = (0.299, 0.587, 0.114)
_BILINEAR = 2
_FILES = (
    "README.md", "config.json", "model.safetensors", "model.onnx", "model.onnx.data", "adapter_config.json",
    "adapter_model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
    "preprocessor_config.json", "modules.json", "sentence_bert_config.json", "1_Pooling/config.json", "2_Dense/*",
)  # fmt: skip


class Normalization(Protocol):
    """Per-channel (x - mean) / std, for x in 0..1; one number serves all channels."""

    @property
    def mean(self) -> tuple[float, ...]: ...
    @property
    def std(self) -> tuple[float, ...]: ...


def coloured(patch_DCHW: Tensor) -> Tensor:
    """The patch embedding of a grey model for colour images: it sees their luma."""
    return patch_DCHW * torch.tensor(_LUMA, dtype=patch_DCHW.dtype).view(1, 3, 1, 1)


def write_inputs(
    folder: Path,
    config: ModelConfig,
    normalize: Normalization | None,
    crop: Crop,
    tokenizer: str | Path | None,
    card: str,
) -> dict[str, int | None]:
    """How images or texts are prepared, and the model card; returns what `write_tokenizer` does."""
    if card:
        (folder / "README.md").write_text(card, encoding="utf-8")
    if config.family == "vit":
        if normalize is not None:
            write_preprocessor(folder, config, normalize, crop)
        return {}
    return {} if tokenizer is None else write_tokenizer(folder, config, tokenizer)


def write_preprocessor(folder: Path, config: ModelConfig, normalize: Normalization, crop: Crop) -> None:
    """Bring to the model's square, divide by 255, normalise: as the data were prepared."""
    channels = max(config.channels, 3)
    square = {"height": config.image, "width": config.image}
    # ViT's own processor knows no crop, Perceiver's cuts the middle out before it scales, as is done here; those of
    # other models cut behind it, which moves an image that is not square by up to a pixel.
    sized: dict[str, Any] = {"image_processor_type": "ViTImageProcessor", "size": square}
    if crop == "center":
        sized |= {"image_processor_type": "PerceiverImageProcessor", "do_center_crop": True, "crop_size": square}
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
    write_json(folder / "preprocessor_config.json", values)


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


def write_tokenizer(folder: Path, config: ModelConfig, tokenizer: str | Path) -> dict[str, int | None]:
    """A `tokenizer.json`, or that of a folder, with what makes transformers read texts by it as they are read here.

    A language model goes on with a text, so that its tokenizer puts no mark behind one. Returns what its `config.json`
    has to say of where a text begins and ends: left out, transformers would take LLaMA's own marks.
    """
    path = Path(tokenizer)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise CheckpointError(f"no tokenizer.json at {tokenizer}; name the file or its folder")
    content = file.read_text(encoding="utf-8")
    loaded = extra("tokenizers", "text", "A tokenizer").Tokenizer.from_str(content)
    loaded.no_padding()
    loaded.no_truncation()
    goes_on = config.task == "language-modeling"
    ids: dict[str, int | None] = {"pad_token": config.pad_token if config.pad_token >= 0 else None}
    if goes_on:
        ids |= {"bos_token": next(iter(around(loaded)[0]), None), "eos_token": end_of_text(loaded, file)}
    names = {name: loaded.id_to_token(number) for name, number in ids.items() if number is not None}
    (folder / "tokenizer.json").write_text(_open_ended(loaded, content) if goes_on else content, encoding="utf-8")
    values = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_tokens,
        "model_input_names": ["input_ids", "attention_mask"],
        "padding_side": "left" if goes_on else "right",
    }
    chat = chat_template(file.parent) if goes_on else None
    values |= {} if chat is None else {"chat_template": chat.source}
    write_json(folder / "tokenizer_config.json", values | {name: token for name, token in names.items() if token})
    if goes_on:  # greedy, as `cos2p generate` by default
        known = {f"{name}_id": number for name, number in ids.items() if number is not None}
        write_json(folder / "generation_config.json", {"do_sample": False, **known})
    return {f"{name}_id": number for name, number in ids.items() if name != "pad_token"}


def _open_ended(tokenizer: Any, content: str) -> str:
    """The tokenizer without what it puts behind a text; as it was, if that is nothing."""
    before, after = around(tokenizer)
    if not after:
        return content
    marks = [(tokenizer.id_to_token(number), number) for number in before]
    names = [name for name, _ in marks]
    tokenizer.post_processor = extra("tokenizers.processors", "text", "A tokenizer").TemplateProcessing(
        single=[*names, "$A"], pair=[*names, "$A", "$B:1"], special_tokens=list(dict.fromkeys(marks))
    )
    return str(tokenizer.to_str())


def readable_by_all(folder: Path) -> None:
    """The files of the model 0644, whatever else is in the folder: a model is made to be passed on."""
    for name in _FILES:
        for path in folder.glob(name):
            path.chmod(0o644)
