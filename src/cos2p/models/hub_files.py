"""The files of a checkpoint: finding or downloading them, and opening their tensors without reading them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from cos2p.data.paths import checkpoint_folder
from cos2p.errors import CheckpointError
from cos2p.extras import extra
from cos2p.models.hub_tables import TABLES, canonical

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def is_hub_name(name: str) -> bool:
    """Whether `resolve` would ask a hub for it."""
    path = Path(checkpoint_folder(name)).expanduser()
    return not path.exists() and _HUB_NAME.fullmatch(name) is not None


def resolve(folder: str | Path) -> Path:
    """The folder of a checkpoint: as it is, below $COS2P_DATA, or downloaded by its hub name."""
    path = Path(checkpoint_folder(folder) if isinstance(folder, str) else folder).expanduser()
    if path.is_dir():
        return path
    if isinstance(folder, Path) or not is_hub_name(folder):
        raise CheckpointError(f"no checkpoint folder at {folder}; give a folder with config.json and model.safetensors")
    return _download(folder)


def _download(name: str) -> Path:
    # Only here: the one place that may use the network.
    snapshot_download = extra("huggingface_hub", "text", "A checkpoint of the hub").snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors"]))
    except Exception as error:  # the hub's client has its own and its HTTP library's exceptions
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"there is no folder {name!r} here, and the hub did not give a model of that name ({reason}); "
            f"where there is a network, run `hf download {name} --include '*.json' '*.safetensors' --local-dir DIR` "
            f"and give DIR"
        ) from error


_KINDS: dict[str, type] = {"architectures": list, "id2label": dict, "layer_norm_eps": float, "rms_norm_eps": float}
"""Defaults of fields that are read in several places."""


def read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing; a checkpoint folder has one next to its tensors") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not readable as JSON: {error}") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} must hold an object, got {type(values).__name__}")
    for name, kind in _KINDS.items():
        if not isinstance(values.get(name) or kind(), kind):
            raise CheckpointError(f"{path}: {name} is {values[name]!r}, no {kind.__name__}")
    return values


def write_json(path: Path, values: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _tensor_files(path: Path) -> list[Path]:
    """safetensors before pickles, one file before shards."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (path / name).is_file():
            return [path / name]
        if (path / f"{name}.index.json").is_file():
            return _shards(path, path / f"{name}.index.json")
    others = sorted(
        {file.suffix for file in path.iterdir() if file.suffix in (".gguf", ".onnx", ".h5", ".msgpack", ".pt")}
    )
    hint = f"; {', '.join(others)} files are not read" if others else ""
    raise CheckpointError(f"{path} has neither model.safetensors nor pytorch_model.bin, whole or in shards{hint}")


def _shards(path: Path, index: Path) -> list[Path]:
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

    load: Callable[[], Tensor]
    name: str
    shape: tuple[int, ...]

    def read(self) -> Tensor:
        tensor = self.load()
        if not tensor.is_floating_point():
            raise CheckpointError(f"{self.name} is {tensor.dtype}; only floating-point checkpoints can be loaded")
        return tensor.to(torch.float32)


def open_tensors(path: Path, kind: str, files: ExitStack, head: Path | None = None) -> dict[str, StoredTensor]:
    """Every tensor by the name under which `hub_tables` lists it; the files stay open as long as `files`.

    `head`: a file with the classifier's `linear.weight` and perhaps `linear.bias`, if it is there.
    """
    tensors: dict[str, StoredTensor] = {}
    if head is not None and head.is_file():
        classifier = TABLES[kind].names["exit.linear"]
        tensors |= {tensor.name.replace("linear", classifier, 1): tensor for tensor in _safe(head, files)}
    for file in _tensor_files(path):
        for tensor in _pickled(file) if file.suffix == ".bin" else _safe(file, files):
            known = canonical(kind, tensor.name)
            if known in tensors:
                raise CheckpointError(f"{path} has two tensors for {known}: {tensors[known].name} and {tensor.name}")
            tensors[known] = tensor
    return tensors


def _safe(file: Path, files: ExitStack) -> Iterator[StoredTensor]:
    try:
        opened = files.enter_context(safe_open(file, framework="pt"))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} is not a readable safetensors file ({error}); download it again") from None
    for name in opened.keys():  # noqa: SIM118 (not a mapping)
        yield StoredTensor(partial(opened.get_tensor, name), name, tuple(opened.get_slice(name).get_shape()))


def _pickled(file: Path) -> Iterator[StoredTensor]:
    """Tensors alone: torch refuses a pickle that would run anything."""
    try:
        values = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch has no common exception for files it cannot or will not read
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"{file} cannot be read as tensors alone ({reason}); save it with safe_serialization=True"
        ) from None
    if not isinstance(values, dict) or not all(isinstance(tensor, Tensor) for tensor in values.values()):
        raise CheckpointError(f"{file} does not hold tensors by name; save it with safe_serialization=True")
    for name, tensor in values.items():
        yield StoredTensor(partial(torch.clone, tensor), name, tuple(tensor.shape))
