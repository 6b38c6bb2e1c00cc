"""Ways to damage a checkpoint folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from cos2p import ModelConfig
from cos2p.models.hub import save_pretrained
from cos2p.models.layout import init_weights
from tests.submodel.strategies import CONFIGS

VIT, BERT = CONFIGS["vit"], CONFIGS["bert"]


def change_tensors(folder: Path, **changes: torch.Tensor | None) -> None:
    """Replace tensors of a checkpoint; None removes. `__` in a name stands for a dot."""
    tensors = load_file(folder / "model.safetensors")
    for key, value in changes.items():
        name = key.replace("__", ".")
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value
    save_file(tensors, folder / "model.safetensors")


def change_config(folder: Path, **changes: Any) -> None:
    values = json.loads((folder / "config.json").read_text())
    values |= changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in values.items() if v != "remove"}))


def bare(folder: Path, config: ModelConfig) -> Path:
    """A checkpoint that does not say how it is pooled."""
    plain = config.with_(pooling="mean")
    save_pretrained(folder, plain, init_weights(plain, 0))
    change_config(folder, cos2p_pooling="remove", cos2p_pooler="remove")
    for name in ("1_Pooling", "2_Dense"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "modules.json").unlink(missing_ok=True)
    return folder
