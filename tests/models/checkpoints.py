"""Ways to damage a checkpoint folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

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
