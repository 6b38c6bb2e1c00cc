"""The files of a checkpoint: finding or downloading them, and opening their tensors without reading them."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from cos2p.errors import CheckpointError
from cos2p.models.hub_tables import canonical

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def resolve(folder: str | Path) -> Path:
    """The folder of a checkpoint: as it is, or downloaded by its hub name."""
    path = Path(folder).expanduser()
    if path.is_dir():
        return path
    if isinstance(folder, Path) or not _HUB_NAME.fullmatch(folder) or path.exists():
        raise CheckpointError(f"no checkpoint folder at {folder}; give a folder with config.json and model.safetensors")
    return _download(folder)


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download  # only here: the one place that may use the network

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors"]))
    except Exception as error:  # the hub's client has its own and its HTTP library's exceptions
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"there is no folder {name!r} here, and the hub did not give a model of that name ({reason}); "
            f"where there is a network, run `hf download {name} --include '*.json' '*.safetensors' --local-dir DIR` "
            f"and give DIR"
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing; a checkpoint folder has one beside its tensors") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not readable as JSON: {error}") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} must hold an object, got {type(values).__name__}")
    return values


def _tensor_files(path: Path) -> list[Path]:
    single, index = path / "model.safetensors", path / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        pickled = any(path.glob("*.bin")) or any(path.glob("*.pt"))
        hint = "; pickled weights are not read: save them with safe_serialization=True" if pickled else ""
        raise CheckpointError(f"{path} has neither model.safetensors nor model.safetensors.index.json{hint}")
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise CheckpointError(f"{index} has no weight_map; it must give a file for each tensor")
    files = [path / name for name in sorted({str(shard) for shard in shards.values()})]
    missing = [file.name for file in files if not file.is_file() or file.parent != path]
    if missing:
        raise CheckpointError(f"{index} names {', '.join(missing)}, which is not in the folder; download it again")
    return files


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of an open file."""

    file: Any
    name: str
    shape: tuple[int, ...]

    def read(self) -> Tensor:
        tensor: Tensor = self.file.get_tensor(self.name)
        if not tensor.is_floating_point():
            raise CheckpointError(f"{self.name} is {tensor.dtype}; only floating-point checkpoints can be loaded")
        return tensor.to(torch.float32)


def open_tensors(path: Path, family: str, files: ExitStack) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for file in _tensor_files(path):
        try:
            opened = files.enter_context(safe_open(file, framework="pt"))
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{file} is not a readable safetensors file ({error}); download it again") from None
        for name in opened.keys():  # noqa: SIM118 (not a mapping)
            known = canonical(family, name)
            if known in tensors:
                raise CheckpointError(f"{path} has two tensors for {known}: {tensors[known].name} and {name}")
            tensors[known] = StoredTensor(opened, name, tuple(opened.get_slice(name).get_shape()))
    return tensors
