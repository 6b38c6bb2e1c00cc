"""From a recipe to everything a run needs: data, shards, members, model, method, first weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from cos2p.accelerator import for_tensors, resolve
from cos2p.aggregation.privacy.checks import with_multiplier
from cos2p.aggregation.settings import PrivacySettings
from cos2p.data import Bundle, load
from cos2p.data.partition import local_split, partition, sizes_by_weight
from cos2p.devices.attacks import poisoned
from cos2p.devices.device import Device
from cos2p.devices.draw import group_devices
from cos2p.devices.settings import DeviceGroup
from cos2p.errors import ConfigError, DataError
from cos2p.memory.planning import with_parts
from cos2p.memory.tasks import Member, RunContext
from cos2p.methods import build_method, method_class, method_settings
from cos2p.methods.base import Method
from cos2p.models.config import ModelConfig, TaskKind
from cos2p.models.hub import pretrained_config, pretrained_weights
from cos2p.models.hub_fit import DataFacts
from cos2p.models.layout import Weights, init_weights
from cos2p.recipe import Recipe
from cos2p.runtime.settled import settle
from cos2p.training.embeddings import token_rows
from cos2p.training.losses import check_adjustable
from cos2p.training.own_base import own_names, table_rows
from cos2p.training.shard import Shard


@dataclass(frozen=True)
class Place:
    """The accelerator of a simulated device."""

    device: torch.device
    memory: int
    """Bytes that it may take there."""
    base: bool = False
    """Whether it has the checkpoint in files of its own."""


@dataclass(frozen=True, eq=False)
class RunSetup:
    recipe: Recipe
    bundle: Bundle
    config: ModelConfig
    context: RunContext
    shards: dict[str, Shard]
    places: dict[str, Place]
    notes: tuple[str, ...] = ()
    """Notes for the user on data and model."""

    def method(self) -> Method:
        return build_method(self.recipe.method, self.context)

    def own_base(self, client: str) -> Mapping[str, str]:
        """The frozen parts that a device has in files of its own, by name."""
        recipe = self.recipe
        precision = method_class(recipe.method["name"]).frozen_precision(method_settings(recipe.method))
        rows = table_rows(self.config, recipe.embeddings, self.context.members[client].rows)
        return own_names(recipe.model.pretrained, self.config, precision, rows)

    @property
    def malicious(self) -> tuple[str, ...]:
        """Devices that a simulation lets send something else than they learned."""
        return self.recipe.attack.malicious(self.context.names)


def build_run_setup(recipe: Recipe, as_bound: bool = False) -> RunSetup:
    """Load the data, deal it out, and describe the fleet. The same recipe gives the same setup everywhere; that of the
    setup has what was left open (see `runtime.settled`)."""
    bundle = load(recipe.data, recipe.seed, recipe.model.pretrained)
    if bundle.classes == 1:
        raise DataError(
            f"all labels are {bundle.class_names[0]!r}, and a classifier needs two classes: check data.label_column, "
            "or list all classes in data.classes"
        )
    settled = settle(recipe, bundle, model_config(recipe, bundle))
    recipe, config = settled.recipe, settled.config
    devices = fleet_devices(recipe)
    shards = _poisoned(recipe, deal_shards(recipe, bundle, devices))
    places = {device.name: Place(resolve(group.accelerator), device.memory, group.base) for device, group in devices}
    members = {
        device.name: _member(recipe, config, _with_room(device, places[device.name]), group, shards[device.name])
        for device, group in devices
    }
    attack, strength = recipe.attack.attack
    if attack == "statistics":  # a claim is made when a device joins
        claim = round(strength)
        for name in recipe.attack.malicious(list(members)):
            one = members[name]
            device = one.device.model_copy(update={"memory": claim * one.device.memory})
            members[name] = replace(one, samples=claim * one.samples, device=device)
    context = replace(run_context(recipe, config, members), as_bound=as_bound)
    if method_class(recipe.method["name"]).by_memory or any(member.auto for member in members.values()):
        context = with_parts(build_method(recipe.method, context))
    run_setup = RunSetup(
        recipe, bundle, config, context, shards, places, (*settled.notes, *_batch_notes(devices, shards))
    )
    _ = run_setup.malicious  # names that the fleet does not have are refused before anything runs
    return run_setup


def _batch_notes(devices: Sequence[tuple[Device, DeviceGroup]], shards: Mapping[str, Shard]) -> list[str]:
    """A note on each kind of devices that all have fewer samples than their batch."""
    most: dict[tuple[str, int], int] = {}
    for device, group in devices:
        kind = (group.name or group.preset, group.batch)
        most[kind] = max(most.get(kind, 0), len(shards[device.name].train))
    return [
        f"batch {batch} is more than any {name} has ({samples} samples at most): each trains on all of them at once"
        for (name, batch), samples in most.items()
        if samples < batch
    ]


def _poisoned(recipe: Recipe, shards: dict[str, Shard]) -> dict[str, Shard]:
    """With the data of devices that train a backdoor as these want it."""
    if recipe.attack.attack[0] != "backdoor":
        return shards
    found = dict(shards)
    for name in recipe.attack.malicious(list(shards)):
        part = shards[name].train
        if not isinstance(part.inputs, Tensor) or part.is_text:
            raise ConfigError("attack.kind = 'backdoor' marks images that are in memory; this recipe has others")
        images, labels = poisoned(part.inputs, part.labels)
        found[name] = replace(shards[name], train=replace(part, inputs=images, labels=labels))
    return found


def run_context(recipe: Recipe, config: ModelConfig, members: Mapping[str, Member]) -> RunContext:
    return RunContext(
        config,
        members,
        recipe.training,
        recipe.schedule,
        recipe.seed,
        recipe.fleet.enforce_memory,
        private_settings(recipe),
        recipe.robust,
    )


def _with_room(device: Device, place: Place) -> Device:
    """As its tasks are cut: without the bytes that its accelerator takes next to the tensors."""
    return device.model_copy(update={"memory": for_tensors(place.memory, place.device)})


def _member(recipe: Recipe, config: ModelConfig, device: Device, group: DeviceGroup, shard: Shard) -> Member:
    samples, auto = len(shard.train), group.rate == "auto"
    rate = 1.0 if group.rate == "auto" else group.rate
    rows = token_rows(shard, recipe.embeddings, config.pad_token)
    texts = (0, 0) if recipe.privacy.on else shard.text_tokens
    batch = min(group.batch, samples)
    return Member(device.name, device, rate, batch, samples, len(shard.test), rows, texts, auto=auto)


def private_settings(recipe: Recipe) -> PrivacySettings:
    """The recipe's, with the noise multiplier that follows from it."""
    return with_multiplier(recipe.privacy, recipe.schedule, len(fleet_devices(recipe)))


def model_config(recipe: Recipe, bundle: Bundle) -> ModelConfig:
    """The recipe's model with what the data decides, checked against what the training asks of it."""
    config = _fitted_to_data(recipe, bundle)
    if recipe.training.label_skew == "logit-adjustment":
        check_adjustable(config)
    return config


def _fitted_to_data(recipe: Recipe, bundle: Bundle) -> ModelConfig:
    """Task, classes, tokens, channels, image size and vocabulary are the data's."""
    facts, train = data_facts(bundle), bundle.train
    if recipe.model.pretrained:
        return pretrained_config(recipe.model.pretrained, facts, **recipe.model.chosen)
    config = recipe.model.config(**facts.fields())
    wants_text = config.family != "vit"
    if wants_text != train.is_text:
        kind = "texts" if train.is_text else "images"
        raise ConfigError(f"model.size {recipe.model.size!r} is a {config.family}, but the data are {kind}")
    return config


def data_facts(bundle: Bundle) -> DataFacts:
    task: TaskKind = "classification" if bundle.classes else "language-modeling"
    train = bundle.train
    if train.is_text:
        return DataFacts(
            task, bundle.classes or None, train.inputs.shape[1], train.vocabulary, pad_token=train.pad_id or 0
        )
    _, channels, height, width = train.inputs.shape
    if height != width:
        raise ConfigError(f"images are {height}×{width} pixels; set data.image_size to make them square")
    return DataFacts(task, bundle.classes or None, image=height, channels=channels)


def first_weights(recipe: Recipe, config: ModelConfig) -> Weights:
    if recipe.model.pretrained:
        return pretrained_weights(recipe.model.pretrained, config)
    return init_weights(config, recipe.seed)


def fleet_devices(recipe: Recipe) -> list[tuple[Device, DeviceGroup]]:
    """Every device of the fleet with its group; devices of equal names are numbered through."""
    devices = []
    counts: dict[str, int] = {}
    for group in recipe.fleet.devices:
        base = group.name or group.preset
        first = counts.get(base, 0) + 1
        counts[base] = first + group.count - 1
        names = [f"{base}-{number}" for number in range(first, first + group.count)]
        made = group_devices(group, names, recipe.seed)
        devices += [(device, group) for device in made]
    return devices


def deal_shards(recipe: Recipe, bundle: Bundle, devices: list[tuple[Device, DeviceGroup]]) -> dict[str, Shard]:
    train, settings = bundle.train, recipe.partition
    weights = [group.share if group.share is not None else group.batch for _, group in devices]
    labels = train.strata()
    parts = partition(
        labels,
        sizes_by_weight(len(train), weights),
        kind=settings.kind,
        alpha=settings.alpha,
        seed=recipe.seed,
        groups=train.groups,
    )
    shards = {}
    for (device, _), indices in zip(devices, parts, strict=True):
        own, test = local_split(
            np.asarray(indices), labels, fraction=1 - settings.local_test, seed=recipe.seed, client=device.name
        )
        shards[device.name] = Shard(train.subset(own), train.subset(test), recipe.data.normalize, recipe.data.augment)
    return shards
