"""Low-rank adapters as a folder that `peft` loads: `adapter_config.json` and `adapter_model.safetensors`.

Weights with adapters are those of the whole model, with the adapters in its matrices, and next to them the factors by
names of their own (`blocks.3.adapters.q.down`); `methods.fedlora` says what they mean. Nothing here imports `peft`.

`peft` names a module as transformers does in memory, not on disk; of a ViT these are the names of transformers 5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from cos2p.errors import CheckpointError
from cos2p.models.config import ModelConfig
from cos2p.models.hub import exit_depth, head_tensors, load_pretrained, model_content, pretrained_weights, write_model
from cos2p.models.hub_config import is_native, named_classes
from cos2p.models.hub_export import Crop, Normalization, readable_by_all, write_inputs
from cos2p.models.hub_files import is_hub_name, read_json, resolve, write_json
from cos2p.models.hub_fit import Checkpoint
from cos2p.models.hub_pooling import write_head
from cos2p.models.hub_tables import TABLES, their_names, written_kind
from cos2p.models.layout import Weights, exit_key

BASE = "base"
"""Folder of the base inside that of its adapters."""
_NAME = re.compile(r"blocks\.(\d+)\.adapters\.(\w+)\.(down|up)")
_IN_MEMORY = (
    (r"encoder\.layer\.(\d+)\.attention\.attention\.(query|key|value)\b", r"layers.\1.attention.\2"),
    (r"encoder\.layer\.(\d+)\.attention\.output\.dense\b", r"layers.\1.attention.o_proj"),
    (r"encoder\.layer\.(\d+)\.intermediate\.dense\b", r"layers.\1.mlp.fc1"),
    (r"encoder\.layer\.(\d+)\.output\.dense\b", r"layers.\1.mlp.fc2"),
    (r"\.attention\.query\b", ".attention.q_proj"),
    (r"\.attention\.key\b", ".attention.k_proj"),
    (r"\.attention\.value\b", ".attention.v_proj"),
)
"""A ViT's modules: from their names on disk to those in memory."""


def adapter_name(block: int, layer: str, factor: Literal["down", "up"]) -> str:
    """The name of a factor among the weights.

    >>> adapter_name(3, "q", "up")
    'blocks.3.adapters.q.up'
    """
    return f"blocks.{block}.adapters.{layer}.{factor}"


def save_adapter(
    folder: str | Path,
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    base: str = "",
    labels: Sequence[str] | None = None,
    exit: int | None = None,
    normalize: Normalization | None = None,
    crop: Crop = "center",
    tokenizer: str | Path | None = None,
    card: str = "",
) -> Path:
    """Write the adapters among `weights` so that `PeftModel.from_pretrained(base, folder)` gives the same logits.

    `base` names the checkpoint on a hub that they belong to (see `fits_base`). Empty: the base is written too, into
    `folder`/base, with the adapters taken out of its matrices. The other arguments are those of `save_pretrained`.

    Where transformers has no such head, the adapters are those of the plain encoder, with the classifier in `2_Dense`.
    """
    depth, path = exit_depth(config, exit), Path(folder)
    layers = _layers(weights, depth)
    if not layers:
        raise CheckpointError(
            "these weights have no adapters; a run of the method 'fedlora' writes them, other methods train the "
            "model's own matrices: export it as a whole"
        )
    values, tensors = model_content(config, without_adapters(weights), depth, labels, in_colour=normalize is not None)
    path.mkdir(parents=True, exist_ok=True)
    marks = write_inputs(path, config, normalize, crop, tokenizer, card)
    if not base:
        write_model(path / BASE, values | marks, tensors)
    if config.task == "classification":
        write_json(path / "config.json", named_classes(config, labels))
    head, names = head_tensors(config, weights, depth), _in_memory(config, depth)
    if not is_native(config):
        write_head(path, config, head.pop("linear"))
    modules = {layer: names[layer.replace(".adapters", "") + ".weight"].removesuffix(".weight") for layer in layers}
    saved = [names[f"exit.{part}.weight"].removesuffix(".weight") for part in head]
    tensors = _factors(weights, modules) | _saved(config, weights, depth, names, saved)
    tensors = {f"base_model.model.{name}": tensor.detach().contiguous() for name, tensor in tensors.items()}
    save_file(tensors, path / "adapter_model.safetensors", metadata={"format": "pt"})
    values = _config(config, base or BASE, len(weights[f"{layers[0]}.down"]), list(modules.values()), saved)
    write_json(path / "adapter_config.json", values)
    readable_by_all(path)
    readable_by_all(path / BASE)
    return path


def load_adapter(folder: Path) -> tuple[ModelConfig, Weights, Path]:
    """The base of a `peft` folder with its LoRA merged into it, and the folder of the base; CheckpointError if they do
    not belong together."""
    values = read_json(folder / "adapter_config.json")
    base = _base_of(folder, values)
    config, weights = load_pretrained(base)
    scale = float(values.get("lora_alpha") or 1) / int(values.get("r") or 1)
    names = {theirs: ours for ours, theirs in _in_memory(config, config.depth).items()}
    stored = load_file(folder / "adapter_model.safetensors")
    for key, tensor in stored.items():
        name = key.removeprefix("base_model.model.").replace(".modules_to_save.default", "")
        factor = name.endswith(".lora_A.weight")
        if name.endswith(".lora_B.weight"):
            continue
        ours = names.get(name.replace(".lora_A", "") if factor else name, "")
        ours = re.sub(r"^exit\b", exit_key(config, config.depth), ours)
        change = stored[key.replace(".lora_A", ".lora_B")] @ tensor * scale if factor else tensor
        if ours not in weights or weights[ours].shape != change.shape:
            module = name.removesuffix(".weight").removesuffix(".lora_A")
            has = f"there it is {tuple(weights[ours].shape)}" if ours in weights else "which is not there"
            raise CheckpointError(
                f"{folder} is an adapter for another base than {base}: it has {module} of shape {tuple(change.shape)}, "
                f"{has}; name its own in adapter_config.json (base_model_name_or_path)"
            )
        weights[ours] = weights[ours] + change if factor else change.float()
    return config, weights, base


def _base_of(folder: Path, values: Mapping[str, Any]) -> Path:
    named = str(values.get("base_model_name_or_path") or "")
    if values.get("peft_type") != "LORA" or not named:
        raise CheckpointError(f"{folder}: adapter_config.json names no base, or no LoRA; others are not read here")
    return folder / named if (folder / named).is_dir() else resolve(named)


def fits_base(base: str, config: ModelConfig, weights: Mapping[str, Tensor], exit: int | None = None) -> bool:
    """Whether transformers, given this hub name, loads the model that the adapters in `weights` belong to: a checkpoint
    of the type that is written here, with as many blocks, its images, and exactly these frozen tensors."""
    if not is_hub_name(base):
        return False
    try:
        checkpoint = Checkpoint.read(base, pooling_chosen=True)
        stored = checkpoint.config
        if TABLES[checkpoint.kind] is not TABLES[written_kind(config)] or stored.depth != exit_depth(config, exit):
            return False
        if config.family == "vit" and (stored.image, stored.channels) != (config.image, config.channels):
            return False
        theirs = pretrained_weights(base, config)
    except CheckpointError:
        return False
    ours = without_adapters(weights)
    frozen = [name for name in theirs if not name.startswith("exits.")]
    return all(torch.allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-6) for name in frozen)


def without_adapters(weights: Mapping[str, Tensor]) -> Weights:
    """The base: the adapters are neither next to its matrices nor in them."""
    plain = {name: tensor for name, tensor in weights.items() if not _NAME.fullmatch(name)}
    for layer in _layers(weights):
        matrix = layer.replace(".adapters", "") + ".weight"
        plain[matrix] = plain[matrix] - weights[f"{layer}.up"].T @ weights[f"{layer}.down"]
    return plain


def _layers(weights: Mapping[str, Tensor], depth: int | None = None) -> list[str]:
    """Every adapted matrix, below the exit at `depth`: `blocks.3.adapters.q`."""
    found = {name.rpartition(".")[0] for name in weights if _NAME.fullmatch(name)}
    blocks = {layer: int(layer.split(".")[1]) for layer in found}
    kept = [layer for layer in found if depth is None or blocks[layer] < depth]
    return sorted(kept, key=lambda layer: (blocks[layer], layer))


def _factors(weights: Mapping[str, Tensor], modules: Mapping[str, str]) -> Weights:
    return {
        f"{module}.lora_{letter}.weight": tensor
        for layer, module in modules.items()
        for letter, tensor in (("A", weights[f"{layer}.down"]), ("B", weights[f"{layer}.up"].T))
    }


def _saved(
    config: ModelConfig, weights: Mapping[str, Tensor], depth: int, names: Mapping[str, str], modules: Sequence[str]
) -> Weights:
    """The trained exit. `peft` takes all modules whose names end so: a LLaMA's `norm` means those of its blocks too."""
    own = {theirs: ours for ours, theirs in names.items() if theirs.rpartition(".")[0].endswith(tuple(modules))}
    bank = exit_key(config, depth)
    return {theirs: weights[re.sub(r"^exit\b", bank, ours)] for theirs, ours in own.items()}


def _in_memory(config: ModelConfig, depth: int) -> dict[str, str]:
    """Our names to those of transformers in memory; a plain encoder has no prefix."""
    kind = written_kind(config)
    names = their_names(config, depth, kind)
    if config.family == "vit":
        for pattern, replacement in _IN_MEMORY:
            names = {ours: re.sub(pattern, replacement, theirs) for ours, theirs in names.items()}
    base = "" if is_native(config) else TABLES[kind].base
    return {ours: theirs.removeprefix(base) for ours, theirs in names.items()}


def _config(config: ModelConfig, base: str, rank: int, modules: list[str], saved: list[str]) -> dict[str, Any]:
    task = "CAUSAL_LM" if config.task == "language-modeling" else "SEQ_CLS" if config.family != "vit" else None
    if not is_native(config):
        task = "FEATURE_EXTRACTION"
    return {
        "peft_type": "LORA",
        "task_type": task,
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": rank,  # the scale is part of B
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": modules,
        "modules_to_save": saved or None,
    }
