"""The data a device trains on: its own, or the shard the recipe's partition deals it.

With the dealt shards a real fleet trains on exactly what a simulated one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from cos2p.data import load, paths
from cos2p.data.examples import Examples
from cos2p.errors import DataError
from cos2p.models.config import ModelConfig
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import deal_shards, fleet_devices
from cos2p.training.shard import Shard


def dealt_shard(recipe: Recipe, name: str) -> Shard:
    """The part of the recipe's data that its partition gives the device of this name."""
    devices = fleet_devices(recipe)
    known = [device.name for device, _ in devices]
    if name not in known:
        raise DataError(
            f"the recipe deals no data to {name!r} (only to {', '.join(known)}); "
            f"give the device its own: cos2p fleet join KIT --data PATH",
            public="the recipe deals it none, and it has none of its own",
        )
    bundle = load(recipe.data, recipe.seed, recipe.model.pretrained)
    return deal_shards(recipe, bundle, devices)[name]


def own_shard(recipe: Recipe, path: str, classes: Sequence[str], config: ModelConfig) -> Shard:
    """The device's own data, read as the recipe says but from `path`, with the server's numbering of the classes."""
    there = recipe.data.source not in ("csv", "jsonl", "parquet") or _has(path, recipe.data.test)
    local = recipe.data.model_copy(
        update={
            "path": path,
            "test": recipe.data.test if there else "",
            "validation": "",
            "validation_fraction": 0.0,
            "test_fraction": recipe.partition.local_test or 0.1,
            "train_samples": 0,
            "test_samples": 0,
        }
    )
    bundle = load(local, recipe.seed, recipe.model.pretrained)
    train, test = (renumbered(part, classes, path) for part in (bundle.train, bundle.test))
    check_fit(train, config, path)
    if not recipe.partition.local_test:  # what had to be set aside to read the data is not tested either
        test = test.subset(torch.arange(0))
    return Shard(train, test, local.normalize, local.augment)


def _has(path: str, name: str) -> bool:
    """Whether the device has this file; one without test samples of its own sets some aside."""
    try:
        return bool(paths.find_all(path, name))
    except DataError:
        return False


def renumbered(examples: Examples, classes: Sequence[str], path: str) -> Examples:
    """The same samples with label i meaning the server's class i: a device may have seen only some of the classes."""
    if not examples.class_names or tuple(examples.class_names) == tuple(classes):
        return examples
    place = {name: number for number, name in enumerate(classes)}
    unknown = [name for name in examples.class_names if name not in place]
    present = set(examples.labels.tolist())
    if wrong := [name for name in unknown if examples.class_names.index(name) in present]:
        raise DataError(
            f"{path} has the class {wrong[0]!r}, which the run does not know; it knows {', '.join(classes[:8])}"
            + (" ..." if len(classes) > 8 else ""),
            public="classes that the run does not know",
        )
    table = torch.tensor([place.get(name, -1) for name in examples.class_names], dtype=torch.int64)
    return replace(examples, labels=table[examples.labels], class_names=tuple(classes))


def check_fit(examples: Examples, config: ModelConfig, path: str) -> None:
    """DataError if the model cannot take these samples."""
    if examples.is_text != (config.family != "vit"):
        kinds = ("texts", "images") if examples.is_text else ("images", "texts")
        raise DataError(
            f"{path} holds {kinds[0]}, but the run's model takes {kinds[1]}", public=f"the run's model takes {kinds[1]}"
        )
    if examples.is_text:
        if examples.inputs.shape[1] > config.max_tokens or examples.vocabulary > config.vocab:
            raise DataError(
                f"{path} has {examples.inputs.shape[1]} tokens a text of {examples.vocabulary} kinds; "
                f"the run's model takes {config.max_tokens} of {config.vocab}",
                public=f"the run's model takes {config.max_tokens} tokens of {config.vocab}",
            )
        return
    shape, wanted = tuple(examples.inputs.shape[1:]), (config.channels, config.image, config.image)
    if shape != wanted:
        raise DataError(
            f"{path} has images of {shape}, the run's model takes {wanted}; set data.image_size",
            public=f"the run's model takes images of {wanted}",
        )
