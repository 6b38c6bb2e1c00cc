"""Weights from and to Hugging Face checkpoints: `config.json` and `*.safetensors`, never pickles.

Nothing here imports `transformers`; `hub_tables` and `hub_config` hold what there is to know of its files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cos2p.errors import CheckpointError
from cos2p.models.config import ModelConfig
from cos2p.models.exit_bank import fill_exits
from cos2p.models.hub_config import promises_head, read_config, write_config
from cos2p.models.hub_tables import canonical, is_ignored, their_names
from cos2p.models.layout import Weights, exit_key, exit_parameters, layout

FREE_FIELDS = ("classes", "exits", "max_tokens", "pad_token", "task")
"""What may differ from the checkpoint; every other field is decided by its tensors."""


def load_pretrained(folder: str | Path, *, seed: int = 0, **overrides: Any) -> tuple[ModelConfig, Weights]:
    """Read a checkpoint of a ViT, BERT or LLaMA as float32, or raise CheckpointError and load nothing.

    `folder` holds `config.json` and `model.safetensors` (or its index and shards). A string that is no folder but
    looks like a hub name (`google/vit-base-patch16-224`) is downloaded, json and safetensors only.

    `overrides` may be `classes` (a count other than the checkpoint's gets fresh linear layers), `task`, `exits`,
    `pad_token`, and `max_tokens` (BERT keeps that many of its learned positions).

    A checkpoint has one head, the model an exit at every depth: see `exit_bank` for what the others start from. Fresh
    tensors are drawn with `seed`. A checkpoint without a classifier says two classes unless `classes` says otherwise.
    """
    path = _resolve(folder)
    values = _read_json(path / "config.json")
    stored = read_config(values, str(path / "config.json"))
    config = _override(stored, overrides, path)
    with ExitStack() as files:
        tensors = _open(path, stored.family, files)
        ours = _match(stored, config, tensors, promises_head(values, stored), path)
        return config, _read(config, stored, {name: tensors[theirs] for name, theirs in ours.items()}, seed)


def save_pretrained(
    folder: str | Path,
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    exit: int | None = None,
    labels: Sequence[str] | None = None,
) -> Path:
    """Write a folder that `transformers` loads with `from_pretrained`, giving the same logits; return it.

    A checkpoint has one head: that of depth `exit` (all blocks by default), and only the blocks below it are
    written, so an early exit becomes a shallower model of its own. `labels` names the classes.
    """
    depth = config.depth if exit is None else exit
    if not 1 <= depth <= config.depth:
        raise CheckpointError(f"exit {exit} does not exist; the model has exits 1 to {config.depth}")
    values = write_config(config, depth, labels)
    bank = exit_key(config, depth)
    tensors: Weights = {}
    for ours, theirs in their_names(config, depth).items():
        name = ours.replace("exit", bank, 1) if ours.startswith("exit.") else ours
        tensors[theirs] = _checked(weights, name, config)
    values["dtype"] = str(tensors[next(iter(tensors))].dtype).removeprefix("torch.")
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    unfinished = path / "model.safetensors.part"
    save_file(tensors, unfinished, metadata={"format": "pt"})
    unfinished.replace(path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return path


def _checked(weights: Mapping[str, Tensor], name: str, config: ModelConfig) -> Tensor:
    shape = layout(config)[name].shape
    if name not in weights:
        raise CheckpointError(f"cannot save: the weights lack {name} of shape {shape}")
    if tuple(weights[name].shape) != shape:
        raise CheckpointError(f"cannot save: {name} has shape {tuple(weights[name].shape)}, the model says {shape}")
    return weights[name].detach().contiguous()


# Finding the files


_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def _resolve(folder: str | Path) -> Path:
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


def _read_json(path: Path) -> dict[str, Any]:
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
    shards = _read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise CheckpointError(f"{index} has no weight_map; it must give a file for each tensor")
    files = [path / name for name in sorted({str(shard) for shard in shards.values()})]
    missing = [file.name for file in files if not file.is_file() or file.parent != path]
    if missing:
        raise CheckpointError(f"{index} names {', '.join(missing)}, which is not in the folder; download it again")
    return files


# Matching names and shapes, before any tensor is read


@dataclass(frozen=True)
class _Stored:
    """One tensor of an open file."""

    file: Any
    name: str
    shape: tuple[int, ...]

    def read(self) -> Tensor:
        tensor: Tensor = self.file.get_tensor(self.name)
        if not tensor.is_floating_point():
            raise CheckpointError(f"{self.name} is {tensor.dtype}; only floating-point checkpoints can be loaded")
        return tensor.to(torch.float32)


def _open(path: Path, family: str, files: ExitStack) -> dict[str, _Stored]:
    tensors: dict[str, _Stored] = {}
    for file in _tensor_files(path):
        try:
            opened = files.enter_context(safe_open(file, framework="pt"))
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{file} is not a readable safetensors file ({error}); download it again") from None
        for name in opened.keys():  # noqa: SIM118 (not a mapping)
            known = canonical(family, name)
            if known in tensors:
                raise CheckpointError(f"{path} has two tensors for {known}: {tensors[known].name} and {name}")
            tensors[known] = _Stored(opened, name, tuple(opened.get_slice(name).get_shape()))
    return tensors


def _override(stored: ModelConfig, overrides: dict[str, Any], path: Path) -> ModelConfig:
    config = stored.with_(**overrides)  # first: a misspelt field has an error of its own
    for field, value in overrides.items():
        if field not in FREE_FIELDS and value != getattr(stored, field):
            raise CheckpointError(
                f"{path} has {field} {getattr(stored, field)}, not {value}; "
                f"only {', '.join(FREE_FIELDS)} can differ from the checkpoint"
            )
    if config.family == "bert" and config.max_tokens > stored.max_tokens:
        raise CheckpointError(f"{path} has learned positions for {stored.max_tokens} tokens, not {config.max_tokens}")
    if config.task == "language-modeling" and stored.task != config.task and not stored.tied:
        raise CheckpointError(f"{path} has no output table (lm_head.weight); load it with task='classification'")
    return config


def _match(
    stored: ModelConfig, config: ModelConfig, tensors: Mapping[str, _Stored], has_head: bool, path: Path
) -> dict[str, str]:
    """Our names to theirs of what will be read; CheckpointError unless the file holds exactly what it should."""
    expected = their_names(stored, stored.depth)
    shapes = {name: _shape(stored, name) for name in expected}
    if not has_head:  # a bare model may lack its head, whole modules at a time
        for module in ("exit.pooler.", "exit.linear."):
            names = [name for name in expected if name.startswith(module)]
            if not any(expected[name] in tensors for name in names):
                expected = {name: theirs for name, theirs in expected.items() if name not in names}
    problems = [
        f"{theirs} of shape {shapes[name]} is missing" for name, theirs in expected.items() if theirs not in tensors
    ]
    fresh_linear = config.outputs != stored.outputs or config.task != stored.task
    for name, theirs in expected.items():
        found = tensors.get(theirs)
        if found is not None and found.shape != shapes[name]:
            if name.startswith("exit.linear.") and fresh_linear:
                continue  # it will not be used
            problems.append(f"{found.name} has shape {found.shape}, config.json says {shapes[name]}")
    known = set(expected.values()) | _unused_heads(stored)
    extra = [t.name for name, t in tensors.items() if name not in known and not is_ignored(stored.family, name)]
    problems += [f"{name} does not belong to a {stored.family} of {stored.depth} blocks" for name in sorted(extra)]
    if problems:
        more = f"; and {len(problems) - 6} more" if len(problems) > 6 else ""
        raise CheckpointError(f"{path} does not fit its config.json: {'; '.join(problems[:6])}{more}")
    if fresh_linear:
        expected = {name: theirs for name, theirs in expected.items() if not name.startswith("exit.linear.")}
    if config.task != "language-modeling":
        expected.pop("lm_head.weight", None)
    return expected


def _unused_heads(stored: ModelConfig) -> set[str]:
    """A tied language model may carry its table twice."""
    return {"lm_head.weight"} if stored.family == "llama" and stored.tied else set()


def _shape(config: ModelConfig, name: str) -> tuple[int, ...]:
    if name.startswith("exit."):
        return exit_parameters(config)[name.removeprefix("exit.")].shape
    return layout(config)[name].shape


# Reading


def _read(config: ModelConfig, stored: ModelConfig, tensors: Mapping[str, _Stored], seed: int) -> Weights:
    values = {name: tensor.read() for name, tensor in tensors.items()}
    if config.family == "bert" and config.max_tokens < stored.max_tokens:
        values["embed.positions"] = values["embed.positions"][: config.max_tokens].clone()
    last = {name.removeprefix("exit."): values.pop(name) for name in list(values) if name.startswith("exit.")}
    values |= fill_exits(config, last, seed)
    return {name: values[name] for name in layout(config)}
