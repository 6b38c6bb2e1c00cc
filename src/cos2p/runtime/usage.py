"""The code by which other programs use an exported folder, as its model card prints it.

Every block runs as it stands, inside the folder. Where `transformers` has a class for the model it is a pipeline;
elsewhere a few lines compute what `cos2p predict` does, and the card names no pipeline.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from cos2p.models.config import ModelConfig
from cos2p.models.hub_adapter import BASE
from cos2p.models.hub_config import is_native
from cos2p.models.hub_tables import written_kind

Form = Literal["hf", "onnx", "peft"]

_FOLDER = 'folder = "."  # where this card lies'
_TEXTS = 'texts = ["a text", "another text"]'
_PICTURES = 'pictures = ["picture.png"]'
_SQUARES = "[square(file) for file in pictures]"
_VALUES = 'json.loads(Path(folder, "config.json").read_text())'
_NAMES = f'classes = list({_VALUES}["id2label"].values())'
_CLASSES = f'classes = {_VALUES}["cos2p_classes"]'
_BEST = "answers = [sorted(zip(row, classes), reverse=True)[:3] for row in probabilities.tolist()]"


@dataclass(frozen=True)
class Usage:
    """The card's words on how its folder is used."""

    library: str
    """`library_name` of the card."""
    text: str
    """Markdown."""
    tag: str = ""
    """`pipeline_tag`; empty where no pipeline loads the folder."""
    base: str = ""
    """Hub name of the model that an adapter belongs to."""


def usage(
    config: ModelConfig,
    form: Form = "hf",
    *,
    base: str = "",
    sentence: bool = False,
    crop: str = "center",
    has_tokenizer: bool = True,
) -> Usage:
    """`config` is that of the run: of grey images it has one channel. `base` is the hub name of an adapter's model,
    empty for one inside the folder; `sentence`: the folder is one of sentence-transformers, too; `crop` is how images
    that are not square become so."""
    native = is_native(config)
    library = {"hf": "sentence-transformers" if sentence else "transformers"}.get(form, form)
    if form == "onnx":
        blocks = [_onnx(config, crop)]
    elif native:
        blocks = [_pipeline(config, form, base, crop)]
    else:
        blocks = [_no_such_head(config), _by_hand(config, form, base, crop)]
    if form == "peft" and config.family == "vit":
        blocks.insert(0, "With transformers 5 or later: the adapters name a ViT's modules as it does.")
    if sentence:
        blocks += ["With sentence-transformers:", _sentence()]
    if form == "hf":
        blocks.append(f"With cos2p: `cos2p predict . {'picture.png' if config.family == 'vit' else 'texts.txt'}`.")
    if config.family != "vit" and not has_tokenizer:
        blocks = ["The tokenizer was not at hand where this folder was written; export the run again where it is."]
    tag = _task(config) if form == "hf" and native else ""
    return Usage(library, "\n\n".join(blocks), tag, base)


def _task(config: ModelConfig) -> str:
    if config.task == "language-modeling":
        return "text-generation"
    return "image-classification" if config.family == "vit" else "text-classification"


def _auto_class(config: ModelConfig) -> str:
    kinds = {"text-generation": "CausalLM", "image-classification": "ImageClassification"}
    return f"AutoModelFor{kinds.get(_task(config), 'SequenceClassification')}" if is_native(config) else "AutoModel"


def _prepares(config: ModelConfig) -> tuple[str, str]:
    """The preparation of inputs: its class, and its name in a pipeline."""
    return ("AutoImageProcessor", "image_processor") if config.family == "vit" else ("AutoTokenizer", "tokenizer")


def _pil(config: ModelConfig) -> list[str]:
    return ["from PIL import Image, ImageOps"] * (config.family == "vit")


def _square(config: ModelConfig, crop: str) -> list[str]:
    """Pictures of any size as in training (`data.images.resize`). A pipeline cuts and scales a little otherwise, and
    does not round the luma of a colour picture."""
    if config.family != "vit":
        return []
    seen = 'convert("L").convert("RGB")' if config.channels == 1 else 'convert("RGB")'
    scaled = f"return image.resize(({config.image}, {config.image}), Image.Resampling.BILINEAR"
    lines = ["def square(file):", f"    image = ImageOps.exif_transpose(Image.open(file)).{seen}"]
    if crop == "stretch":
        return ["", *lines, f"    {scaled})", "", ""]
    return [
        "",
        *lines,
        "    (width, height), side = image.size, min(image.size)",
        "    box = ((width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2)",
        f"    {scaled}, box, None if width == height else 3.0)",
        "",
        "",
    ]


def _block(*lines: str | Iterable[str]) -> str:
    flat = [line for part in lines for line in ([part] if isinstance(part, str) else part)]
    return "\n".join(["```python", *flat, "```"])


def _pipeline(config: ModelConfig, form: Form, base: str, crop: str) -> str:
    given, inputs = (_SQUARES, _PICTURES) if config.family == "vit" else ("texts", _TEXTS)
    options = {"text-generation": "max_new_tokens=20, do_sample=False", "image-classification": "top_k=3"}
    option = options.get(_task(config), "top_k=3, truncation=True")
    asked = [inputs, f"answers = predict({given}, {option})", "print(answers)"]
    if form == "hf":
        loaded = f'predict = pipeline("{_task(config)}", model=folder)'
        return _block(
            _pil(config), "from transformers import pipeline", "", _square(config, crop), _FOLDER, loaded, asked
        )
    prepares, name = _prepares(config)
    named = bool(base) and config.task == "classification"
    return _block(
        ["import json", "from pathlib import Path", ""] if named else [],
        "from peft import PeftModel",
        _pil(config),
        f"from transformers import {_auto_class(config)}, {prepares}, pipeline",
        ["", *_square(config, crop), _FOLDER, *([_NAMES] if named else []), *_adapted(config, base, "model")],
        f'predict = pipeline("{_task(config)}", model=model, {name}={prepares}.from_pretrained(folder))',
        asked,
    )


def _adapted(config: ModelConfig, base: str, name: str) -> list[str]:
    """The base with its adapters multiplied in. A head of other classes, or none, is replaced by the adapter's."""
    options = [f'"{base}"' if base else f'f"{{folder}}/{BASE}"', *_without_pooler(config)]
    if base and config.task == "classification" and is_native(config):
        options += ["id2label=dict(enumerate(classes))", "ignore_mismatched_sizes=True"]
    return [
        f"base = {_auto_class(config)}.from_pretrained({', '.join(options)}).float()",
        f"{name} = PeftModel.from_pretrained(base, folder).merge_and_unload().eval()",
    ]


def _without_pooler(config: ModelConfig) -> list[str]:
    """BertModel and ViTModel would draw one at random, which nothing reads."""
    return ["add_pooling_layer=False"] * (not is_native(config) and written_kind(config) in ("bert", "vit"))


def _no_such_head(config: ModelConfig) -> str:
    read = {"cls": "the first token itself", "mean": "the mean of the tokens"}.get(config.pooling, config.pooling)
    return (
        f"`transformers` has no {written_kind(config)} classifier that reads {read}, so that no pipeline computes this "
        "model: it is the plain encoder, and its classifier lies in `2_Dense`."
    )


def _by_hand(config: ModelConfig, form: Form, base: str, crop: str) -> str:
    """Encoder, pooling, linear layer."""
    prepares, _ = _prepares(config)
    plain = ", ".join(["folder", *_without_pooler(config)])
    images = config.family == "vit"
    return _block(
        ["import json", "from pathlib import Path", "", "import torch"],
        ["from peft import PeftModel"] if form == "peft" else [],
        _pil(config),
        ["from safetensors.torch import load_file", f"from transformers import AutoModel, {prepares}", ""],
        [*_square(config, crop), _FOLDER],
        _adapted(config, base, "encoder") if form == "peft" else f"encoder = AutoModel.from_pretrained({plain})",
        ['head = load_file(Path(folder, "2_Dense", "model.safetensors"))', _CLASSES, ""],
        _image_features() if images else _text_features(config),
        'logits = torch.nn.functional.linear(features, head["linear.weight"], head.get("linear.bias"))',
        ["probabilities = logits.softmax(-1)", _BEST, "print(answers)"],
    )


def _image_features() -> list[str]:
    return [
        "processor = AutoImageProcessor.from_pretrained(folder)",
        _PICTURES,
        f'inputs = processor({_SQUARES}, return_tensors="pt")',
        "with torch.no_grad():",
        "    tokens = encoder(**inputs).last_hidden_state",
        "features = tokens[:, 1:].mean(1)",
    ]


def _text_features(config: ModelConfig) -> list[str]:
    lines = [
        "tokenizer = AutoTokenizer.from_pretrained(folder)",
        _TEXTS,
        'inputs = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")',
        "with torch.no_grad():",
        "    tokens = encoder(**inputs).last_hidden_state",
    ]
    if config.pooling == "cls":
        return [*lines, "features = tokens[:, 0]"]
    real = 'real = (inputs["input_ids"] != tokenizer.pad_token_id).unsqueeze(-1)'
    return [*lines, real, "features = (tokens * real).sum(1) / real.sum(1).clamp(min=1)"]


def _sentence() -> str:
    return _block(
        ["import json", "from pathlib import Path", "", "from sentence_transformers import SentenceTransformer", ""],
        [_FOLDER, _CLASSES, _TEXTS],
        "probabilities = SentenceTransformer(folder).encode(texts, convert_to_tensor=True).softmax(-1)",
        [_BEST, "print(answers)"],
    )


def _onnx(config: ModelConfig, crop: str) -> str:
    """ONNX Runtime alone, without torch and transformers: as it is on a small device."""
    images, goes_on = config.family == "vit", config.task == "language-modeling"
    return _block(
        ["import json", "from pathlib import Path", ""] if not goes_on else [],
        ["import numpy as np", "import onnxruntime"],
        [*_pil(config), *([] if images else ["from tokenizers import Tokenizer"]), "", *_square(config, crop), _FOLDER],
        'session = onnxruntime.InferenceSession(f"{folder}/model.onnx")',
        [] if goes_on else _NAMES,
        "",
        _onnx_images() if images else _onnx_texts(config),
        ["classes = [tokenizer.decode([i]) for i in range(logits.shape[-1])]  # a token each"] if goes_on else [],
        "probabilities = np.exp(logits - logits.max(-1, keepdims=True))",
        ["probabilities /= probabilities.sum(-1, keepdims=True)", _BEST, "print(answers)"],
    )


def _onnx_images() -> list[str]:
    return [
        'given = json.loads(Path(folder, "preprocessor_config.json").read_text())',
        _PICTURES,
        f"pixels = np.stack({_SQUARES}).astype(np.float32) / 255",
        'pixels = (pixels - np.float32(given["image_mean"])) / np.float32(given["image_std"])',
        'logits = session.run(None, {"pixel_values": pixels.transpose(0, 3, 1, 2)})[0]',
    ]


def _onnx_texts(config: ModelConfig) -> list[str]:
    read = [
        'tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")',
        f"tokenizer.enable_truncation({config.max_tokens})",
    ]
    if config.task == "language-modeling":
        rows = "ids = [np.array([tokenizer.encode(text).ids]) for text in texts]"
        logits = 'logits = np.concatenate([session.run(None, {"input_ids": row})[0][:, -1] for row in ids])'
        return [*read, "tokenizer.no_padding()", _TEXTS, rows, logits]
    padding = f"tokenizer.enable_padding(pad_id={config.pad_token})" if config.pad_token >= 0 else ""
    return [
        *read,
        padding or "tokenizer.no_padding()",
        _TEXTS if padding else 'texts = ["a text"]',
        "ids = np.array([encoding.ids for encoding in tokenizer.encode_batch(texts)])",
        'logits = session.run(None, {"input_ids": ids})[0]',
    ]
