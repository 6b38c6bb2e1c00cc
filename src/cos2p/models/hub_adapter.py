"""Low-rank adapters as a folder that `peft` loads: `adapter_config.json` and `adapter_model.safetensors`.

Weights with adapters are those of the whole model, with the adapters in its matrices, and beside them the factors by
names of their own (`blocks.3.adapters.q.down`); `methods.fedlora` says what they mean. Nothing here imports `peft`.

`peft` names a module as transformers does in memory, not on disk; of a ViT these are the names of transformers 5.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import save_file
from torch import Tensor

from cos2p.errors import CheckpointError
from cos2p.models.config import ModelConfig
from cos2p.models.hub import save_pretrained
from cos2p.models.hub_config import is_native
from cos2p.models.hub_kinds import written_kind
from cos2p.models.hub_tables import TABLES, their_names
from cos2p.models.layout import Weights, exit_key, exit_parameters

_NAME = re.compile(r"blocks\.(\d+)\.adapters\.(\w+)\.(down|up)")
_IN_MEMORY = (
    (r"encoder\.layer\.(\d+)\.attention\.attention\.(query|key|value)$", r"layers.\1.attention.\2"),
    (r"encoder\.layer\.(\d+)\.attention\.output\.dense$", r"layers.\1.attention.o_proj"),
    (r"encoder\.layer\.(\d+)\.intermediate\.dense$", r"layers.\1.mlp.fc1"),
    (r"encoder\.layer\.(\d+)\.output\.dense$", r"layers.\1.mlp.fc2"),
    (r"\.attention\.query$", ".attention.q_proj"),
    (r"\.attention\.key$", ".attention.k_proj"),
    (r"\.attention\.value$", ".attention.v_proj"),
)
"""A ViT's modules: from their names on disk to those in memory."""


def adapter_name(block: int, layer: str, factor: Literal["down", "up"]) -> str:
    """What a factor is called among the weights.

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
) -> Path:
    """Write the adapters among `weights` so that `PeftModel.from_pretrained(base, folder)` gives the same logits.

    `base` names the checkpoint they belong to, as transformers loads it; it must be of the type that `save_pretrained`
    writes. Empty: the base is written too, into `folder`/base, with the adapters taken out of its matrices.

    Where no class of transformers has the model's pooling, the adapters are those of the bare model, and the classifier
    behind it lies beside them as `classifier.safetensors`.
    """
    path = Path(folder)
    layers = _layers(weights)
    if not layers:
        raise CheckpointError(
            "these weights have no adapters; a run of the method 'fedlora' writes them, other methods train the "
            "model's own matrices: export it as a whole"
        )
    path.mkdir(parents=True, exist_ok=True)
    if not base:
        base = str(save_pretrained(path / "base", config, _without_adapters(weights, layers), labels=labels))
    names = _modules(config, layers)
    tensors = {
        f"base_model.model.{module}.lora_{letter}.weight": tensor.detach().contiguous()
        for layer, module in names.items()
        for letter, tensor in (("A", weights[f"{layer}.down"]), ("B", weights[f"{layer}.up"].T))
    }
    head = _head(config, weights)
    saved = {module: parts for module, parts in head.items() if is_native(config) or module != "classifier"}
    for module, parts in saved.items():
        tensors |= {f"base_model.model.{module}.{name}": tensor for name, tensor in parts.items()}
    save_file(tensors, path / "adapter_model.safetensors", metadata={"format": "pt"})
    if saved != head:
        save_file(head["classifier"], path / "classifier.safetensors", metadata={"format": "pt"})
    rank = len(weights[f"{layers[0]}.down"])
    values = _config(config, base, rank, list(names.values()), list(saved))
    (path / "adapter_config.json").write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return path


def _layers(weights: Mapping[str, Tensor]) -> list[str]:
    """Every adapted matrix: `blocks.3.adapters.q`."""
    found = (name.rpartition(".")[0] for name in weights if _NAME.fullmatch(name))
    return sorted(set(found), key=lambda name: (int(name.split(".")[1]), name))


def _without_adapters(weights: Mapping[str, Tensor], layers: Sequence[str]) -> Weights:
    plain = {name: tensor for name, tensor in weights.items() if not _NAME.fullmatch(name)}
    for layer in layers:
        matrix = layer.replace(".adapters", "") + ".weight"
        plain[matrix] = plain[matrix] - weights[f"{layer}.up"].T @ weights[f"{layer}.down"]
    return plain


def _modules(config: ModelConfig, layers: Sequence[str]) -> dict[str, str]:
    """What transformers calls the adapted modules."""
    names = their_names(config, config.depth, written_kind(config))
    return {layer: _in_memory(config, names[layer.replace(".adapters", "") + ".weight"]) for layer in layers}


def _in_memory(config: ModelConfig, theirs: str) -> str:
    """A module's name by that of its weight on disk; a bare model has no prefix."""
    module = theirs.removesuffix(".weight")
    if config.family == "vit":
        for pattern, replacement in _IN_MEMORY:
            module = re.sub(pattern, replacement, module)
    return module if is_native(config) else module.removeprefix(TABLES[written_kind(config)].base)


def _head(config: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Weights]:
    """The trained exit by modules of transformers: norm or pooler, and the classifier."""
    names = their_names(config, config.depth, written_kind(config))
    head: dict[str, Weights] = {}
    for name, part, kind in _exit_parts(config):
        theirs = names[f"exit.{name}"]
        module = "classifier" if part == "linear" and not is_native(config) else theirs.rpartition(".")[0]
        if part != "linear" and not is_native(config):
            module = module.removeprefix(TABLES[written_kind(config)].base)
        tensor = weights[f"{exit_key(config, config.depth)}.{name}"]
        head.setdefault(module, {})[kind] = tensor.detach().contiguous()
    return head


def _exit_parts(config: ModelConfig) -> Iterator[tuple[str, str, str]]:
    for name in exit_parameters(config):
        part, _, kind = name.rpartition(".")
        yield name, part, kind


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
