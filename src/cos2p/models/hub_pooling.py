"""How a checkpoint turns tokens into one vector: reading what it says, and saying so where transformers has no class.

`transformers` has one way for each family (`ViTForImageClassification` reads the cls token, and so on). A model with
another one is written as its plain encoder, with the pooling and the class names in `config.json` and the classifier in
`2_Dense`. Where sentence-transformers computes the same, the folder is one of its own, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from cos2p.errors import CheckpointError
from cos2p.extras import extra
from cos2p.models.config import ModelConfig
from cos2p.models.hub_files import read_json, write_json

POOLING_FIELD = "cos2p_pooling"
"""In `config.json`: the pooling in front of the classifier in `2_Dense`; there is no pooler between them."""
CLASSES_FIELD = "cos2p_classes"
HEAD_FILE = "2_Dense/model.safetensors"
"""`linear.weight` and, if there is one, `linear.bias`."""
_MODES = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "last": "pooling_mode_lasttoken"}
_SHORT = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
_MODULE = "sentence_transformers.models."


def stored_pooling(folder: Path, values: Mapping[str, Any], has_classifier: bool) -> dict[str, str]:
    """`pooling` and `pooler` as far as the checkpoint says: `config.json` (ours), or sentence-transformers' files.

    A classifier of transformers was trained behind its family's own pooling, whatever lies next to it.
    """
    if has_classifier:
        return {}
    if POOLING_FIELD in values:
        return {"pooling": str(values[POOLING_FIELD]), "pooler": "none"}
    file = _pooling_file(folder)
    if file is None:
        return {}
    settings = read_json(file)
    chosen = [ours for ours, theirs in _MODES.items() if settings.get(theirs)]
    others = [name for name, on in settings.items() if name.startswith("pooling_mode_") and on is True]
    if isinstance(settings.get("pooling_mode"), str):
        others = [settings["pooling_mode"]]
        chosen = [_SHORT[mode] for mode in others if mode in _SHORT]
    if len(chosen) != 1 or len(others) != 1:
        raise CheckpointError(
            f"{file} asks for {' and '.join(others) or 'no pooling'}; cls, mean or last alone can be computed: "
            f"choose one of them as pooling"
        )
    return {"pooling": chosen[0], "pooler": "none"}


def _pooling_file(folder: Path) -> Path | None:
    modules = folder / "modules.json"
    name = "1_Pooling"
    if modules.is_file():
        listed = json.loads(modules.read_text(encoding="utf-8"))
        entries = [m for m in listed if isinstance(m, dict)] if isinstance(listed, list) else []
        name = next((str(m.get("path")) for m in entries if str(m.get("type", "")).endswith("Pooling")), name)
    file = folder / name / "config.json"
    return file if file.is_file() else None


def write_head(folder: Path, config: ModelConfig, linear: Mapping[str, Tensor]) -> None:
    """The classifier's `weight` and `bias` as a `Dense` of sentence-transformers, which gives logits."""
    values = {
        "in_features": config.dim,
        "out_features": config.classes,
        "bias": "bias" in linear,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    write_json(folder / HEAD_FILE.replace("model.safetensors", "config.json"), values)
    tensors = {f"linear.{name}": tensor for name, tensor in linear.items()}
    save_file(tensors, folder / HEAD_FILE, metadata={"format": "pt"})


def is_sentence_model(config: ModelConfig, tokenizer: Path | None) -> bool:
    """Whether sentence-transformers computes a model that transformers has no class for. It pools what is not padding,
    we what is no padding token: they differ where texts are padded with their end mark or the unknown word."""
    if config.family == "vit" or tokenizer is None or config.pad_token < 0:
        return False
    loaded = extra("tokenizers", "text", "A tokenizer").Tokenizer.from_file(str(tokenizer))
    return "pad" in (loaded.id_to_token(config.pad_token) or "").lower()


def write_sentence_modules(folder: Path, config: ModelConfig) -> None:
    """The files that sentence-transformers needs next to encoder, tokenizer and `2_Dense`."""
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense")]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": _MODULE + kind} for i, (path, kind) in enumerate(modules)
    ]
    modes = {theirs: ours == config.pooling for ours, theirs in _MODES.items()}
    write_json(folder / "modules.json", listed)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": config.max_tokens, "do_lower_case": False})
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": config.dim, **modes})
