"""How a checkpoint turns tokens into one vector: reading what it says, and saying so where transformers has no class.

`transformers` has one way for each family (`ViTForImageClassification` reads the cls token, and so on). A model with
another one is written as its bare class with `cos2p_pooling` in `config.json`, and a text model as a folder of
sentence-transformers: `modules.json`, `1_Pooling`, and the classifier once more as `2_Dense`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from cos2p.errors import CheckpointError
from cos2p.models.config import ModelConfig
from cos2p.models.hub_files import read_json

_OURS = {"pooling": "cos2p_pooling", "pooler": "cos2p_pooler"}
_MODES = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "last": "pooling_mode_lasttoken"}
_SHORT = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
_MODULE = "sentence_transformers.models."


def stored_pooling(folder: Path, values: Mapping[str, Any], has_classifier: bool) -> dict[str, str]:
    """`pooling` and `pooler` as far as the checkpoint says: `config.json` (ours), or sentence-transformers' files.

    A classifier of transformers was trained behind its family's own pooling, whatever lies beside it.
    """
    if has_classifier:
        return {}
    if _OURS["pooling"] in values:
        return {ours: str(values[theirs]) for ours, theirs in _OURS.items() if theirs in values}
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


def pooling_fields(config: ModelConfig) -> dict[str, str]:
    """What `config.json` says of it."""
    return {theirs: getattr(config, ours) for ours, theirs in _OURS.items()}


def write_pooling(folder: Path, config: ModelConfig, linear: Mapping[str, Tensor]) -> None:
    """What sentence-transformers needs to compute the logits; `linear` holds the classifier's `weight` and `bias`."""
    modes = {theirs: ours == config.pooling for ours, theirs in _MODES.items()}
    dense = {
        "in_features": config.dim,
        "out_features": config.classes,
        "bias": "bias" in linear,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense")]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": _MODULE + kind} for i, (path, kind) in enumerate(modules)
    ]
    files = {
        "modules.json": listed,
        "sentence_bert_config.json": {"max_seq_length": config.max_tokens, "do_lower_case": False},
        "1_Pooling/config.json": {"word_embedding_dimension": config.dim, **modes},
        "2_Dense/config.json": dense,
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    tensors = {f"linear.{name}": tensor for name, tensor in linear.items()}
    save_file(tensors, folder / "2_Dense" / "model.safetensors", metadata={"format": "pt"})
