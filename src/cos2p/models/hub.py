"""Weights from and to Hugging Face checkpoints: `config.json` and `*.safetensors`, never pickles.

Nothing here imports `transformers`; `hub_tables` and `hub_config` hold what there is to know of its files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from cos2p.errors import CheckpointError
from cos2p.models.config import ModelConfig
from cos2p.models.exit_bank import fill_exits
from cos2p.models.hub_config import is_native, promises_head, read_config, write_config
from cos2p.models.hub_files import StoredTensor, open_tensors, read_json, resolve
from cos2p.models.hub_pooling import stored_pooling, write_pooling
from cos2p.models.hub_tables import is_ignored, their_names
from cos2p.models.layout import Weights, exit_key, exit_parameters, layout

FREE_FIELDS = ("classes", "exits", "max_tokens", "pad_token", "pooler", "pooling", "task")
"""What may differ from the checkpoint; every other field is decided by its tensors."""


def load_pretrained(folder: str | Path, *, seed: int = 0, **overrides: Any) -> tuple[ModelConfig, Weights]:
    """Read a checkpoint of a ViT, BERT or LLaMA as float32, or raise CheckpointError and load nothing.

    `folder` holds `config.json` and `model.safetensors` (or its index and shards). A string that is no folder but
    looks like a hub name (`google/vit-base-patch16-224`) is downloaded, json and safetensors only.

    `overrides` may be `classes` (a count other than the checkpoint's gets fresh linear layers), `task`, `exits`,
    `pad_token`, `max_tokens` (BERT keeps that many of its learned positions), `pooling` and `pooler` (otherwise what
    sentence-transformers' files say, or the family's habit).

    A checkpoint has one head, the model an exit at every depth: see `exit_bank` for what the others start from. Fresh
    tensors are drawn with `seed`. A checkpoint without a classifier says two classes unless `classes` says otherwise.
    """
    path = resolve(folder)
    values = read_json(path / "config.json")
    stored = read_config(values, str(path / "config.json"))
    has_head = promises_head(values, stored)
    if "pooling" not in overrides:
        overrides = stored_pooling(path, values, has_head) | overrides
    config = _override(stored, overrides, path)
    with ExitStack() as files:
        tensors = open_tensors(path, stored.family, files)
        ours = _match(stored, config, tensors, has_head, path)
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
    names, tensors = their_names(config, depth), Weights()
    for ours, theirs in names.items():
        name = ours.replace("exit", bank, 1) if ours.startswith("exit.") else ours
        tensors[theirs] = _checked(weights, name, config)
    values["dtype"] = str(tensors[next(iter(tensors))].dtype).removeprefix("torch.")
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    unfinished = path / "model.safetensors.part"
    save_file(tensors, unfinished, metadata={"format": "pt"})
    unfinished.replace(path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if config.family != "vit" and not is_native(config):
        classifier = {o.rpartition(".")[2]: tensors[t] for o, t in names.items() if o.startswith("exit.linear.")}
        write_pooling(path, config, classifier)
    return path


def _checked(weights: Mapping[str, Tensor], name: str, config: ModelConfig) -> Tensor:
    shape = layout(config)[name].shape
    if name not in weights:
        raise CheckpointError(f"cannot save: the weights lack {name} of shape {shape}")
    if tuple(weights[name].shape) != shape:
        raise CheckpointError(f"cannot save: {name} has shape {tuple(weights[name].shape)}, the model says {shape}")
    return weights[name].detach().contiguous()


# Matching names and shapes, before any tensor is read


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
    stored: ModelConfig, config: ModelConfig, tensors: Mapping[str, StoredTensor], has_head: bool, path: Path
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
    if config.pooler == "none":
        expected = {name: theirs for name, theirs in expected.items() if not name.startswith("exit.pooler.")}
    return expected


def _unused_heads(stored: ModelConfig) -> set[str]:
    """A tied language model may carry its table twice."""
    return {"lm_head.weight"} if stored.family == "llama" and stored.tied else set()


def _shape(config: ModelConfig, name: str) -> tuple[int, ...]:
    if name.startswith("exit."):
        return exit_parameters(config)[name.removeprefix("exit.")].shape
    return layout(config)[name].shape


# Reading


def _read(config: ModelConfig, stored: ModelConfig, tensors: Mapping[str, StoredTensor], seed: int) -> Weights:
    values = {name: tensor.read() for name, tensor in tensors.items()}
    if config.family == "bert" and config.max_tokens < stored.max_tokens:
        values["embed.positions"] = values["embed.positions"][: config.max_tokens].clone()
    last = {name.removeprefix("exit."): values.pop(name) for name in list(values) if name.startswith("exit.")}
    values |= fill_exits(config, last, seed)
    return {name: values[name] for name in layout(config)}
