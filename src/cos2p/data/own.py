"""Data from Python: a source by its entry point, or a bundle that is handed over and travels as a file.

    [project.entry-points."cos2p.data"]
    sensors = "my_package.data:sensors"        # sensors(config: DataConfig, seed: int) -> Bundle

makes `data.source = "sensors"` known on every machine where the package is installed. The file of a bundle holds
tensors and plain data (safetensors), no code: every worker of a run reads it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open

from cos2p.data import paths
from cos2p.data.config import ENTRY_POINTS, DataConfig
from cos2p.data.examples import Bundle, Examples
from cos2p.data.ragged import Ragged, from_flat
from cos2p.data.select import Groups
from cos2p.errors import DataError

_SPLITS = ("train", "validation", "test")


def load_registered(config: DataConfig, seed: int) -> Bundle:
    """The data of the entry point named by `data.source`."""
    (found,) = entry_points(group=ENTRY_POINTS, name=config.source)
    try:
        source = found.load()
    except (ImportError, AttributeError) as error:
        raise DataError(f"data.source {config.source!r} is {found.value}, which cannot be loaded ({error})") from error
    return checked(source(config, seed), f"data.source {config.source!r}")


def checked(bundle: object, whose: str) -> Bundle:
    """The bundle, if it is one and there is something in it."""
    if not isinstance(bundle, Bundle):
        raise DataError(f"{whose} gives {type(bundle).__name__}; a cos2p.data.Bundle of Examples is needed")
    for name in ("train", "test"):
        if len(getattr(bundle, name)) == 0:
            raise DataError(f"{whose} gives no {name} samples; both train and test need some")
    return bundle


def pack_bundle(bundle: Bundle) -> bytes:
    """The bundle as the content of a file."""
    tensors: dict[str, torch.Tensor] = {}
    facts: dict[str, Any] = {"notes": bundle.notes}
    for split in _SPLITS:
        examples: Examples = getattr(bundle, split)
        inputs = examples.inputs
        groups = examples.groups
        own: dict[str, torch.Tensor] = {"labels": examples.labels}
        if groups is not None:
            own["groups"] = torch.from_numpy(groups.codes)
        facts[split] = {
            "class_names": examples.class_names,
            "groups": None if groups is None else groups.names,
            "pad_id": examples.pad_id,
            "vocabulary": examples.vocabulary,
        }
        if isinstance(inputs, Ragged):
            rows = [inputs.values[s : s + n] for s, n in zip(inputs.starts, inputs.lengths, strict=True)]
            own |= {"ids": torch.cat(rows) if rows else inputs.values[:0], "lengths": inputs.lengths}
            if inputs.answers is not None:
                own["answers"] = inputs.answers
            facts[split] |= {"fill": inputs.fill, "longest": inputs.longest}
        else:
            own["inputs"] = inputs[:]
        tensors |= {f"{split}.{name}": tensor.contiguous().clone() for name, tensor in own.items()}
    return safetensors.torch.save(tensors, {"bundle": json.dumps(facts)})


def bundle_name(content: bytes) -> str:
    """Other data has another name, so that a run cannot be resumed with it."""
    return f"data-{hashlib.blake2b(content, digest_size=8).hexdigest()}.safetensors"


def read_bundle(config: DataConfig) -> Bundle:
    file = paths.find(config.path)
    try:
        with safe_open(file, "pt") as opened:
            facts = json.loads(opened.metadata()["bundle"])
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        parts = {split: _unpacked(split, facts[split], tensors) for split in _SPLITS}
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{file} is not a bundle that cos2p wrote ({error}); check data.path") from error
    return Bundle(**parts, notes=tuple(facts["notes"]))


def _unpacked(split: str, facts: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Examples:
    inputs: torch.Tensor | Ragged
    if f"{split}.ids" in tensors:
        lengths = tensors[f"{split}.lengths"]
        inputs = from_flat(tensors[f"{split}.ids"], lengths, facts["fill"], facts["longest"])
        inputs = replace(inputs, answers=tensors.get(f"{split}.answers"))
    else:
        inputs = tensors[f"{split}.inputs"]
    return Examples(
        inputs,
        tensors[f"{split}.labels"],
        tuple(facts["class_names"]),
        None if facts["groups"] is None else Groups(tensors[f"{split}.groups"].numpy(), tuple(facts["groups"])),
        facts["pad_id"],
        facts["vocabulary"],
    )


def handed_over(recipe_data: DataConfig, file: Path) -> DataConfig:
    """The `[data]` table of a run whose data is in this file: whoever reads the recipe finds it."""
    return recipe_data.model_copy(update={"source": "bundle", "path": str(file.absolute())})
