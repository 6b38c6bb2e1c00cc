"""A recipe's run in a few lines, before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence

from cos2p.data.config import DataConfig
from cos2p.data.paths import find, find_all
from cos2p.devices.device import PRESETS
from cos2p.devices.settings import DeviceGroup
from cos2p.errors import DataError
from cos2p.methods import method_class
from cos2p.models.layout import parameter_count
from cos2p.models.sizes import SIZES
from cos2p.recipe import Recipe
from cos2p.runtime.rehearsal import DevicePlan, Rehearsal
from cos2p.terminal.formatting import count, duration, end_text, form_text
from cos2p.units import format_bytes

_SHOWN = 20
"""Kinds of devices that are shown."""


def plan_text(recipe: Recipe) -> list[str]:
    """Method, devices, model, data and end of the run."""
    devices = sum(group.count for group in recipe.fleet.devices)
    groups = ", ".join(_group(group) for group in recipe.fleet.devices)
    name, form = recipe.method["name"], form_text(recipe.method)
    words = f", {form}" if form else ""
    return [
        f"method   {method_class(name).title} ({name}){words}, seed {recipe.seed}",
        f"devices  {devices}: {groups}",
        *_speeds(recipe),
        f"model    {_model(recipe)}",
        f"data     {_data(recipe.data)}",
        f"ends     {end_text(recipe.schedule.model_dump())}",
    ]


def _speeds(recipe: Recipe) -> list[str]:
    """Whose FLOP/s the simulation counts with, where a preset's are those of a GPU."""
    groups = [group for group in recipe.fleet.devices if group.flops is None and not group.trace]
    known = {group.preset for group in groups} & PRESETS.keys()
    gpus = sorted(name for name in known if PRESETS[name].source.startswith("GPU:"))
    if not gpus:
        return []
    return [
        f"speed    {', '.join(gpus)}: FLOP/s of the GPU, as of a fleet that joins with --accelerator cuda; "
        "for the processor set flops (cos2p profile --accelerator cpu measures them)"
    ]


def rehearsal_text(found: Rehearsal) -> list[str]:
    """The findings when the data were read and the first tasks cut."""
    bundle, config = found.bundle, found.config
    parts = [f"{len(getattr(bundle, name)):,} {name}" for name in ("train", "validation", "test")]
    size = f"{config.image}×{config.image}×{config.channels} pixels"
    if config.family != "vit":
        size = f"{config.max_tokens} tokens at most, of {config.vocab:,} kinds"
    names = bundle.class_names
    shown = f" ({', '.join(names[:8])}{' ...' if len(names) > 8 else ''})" if names else ""
    lines = [f"samples  {', '.join(parts)}; {_classes(len(names))}{shown}; {size}"]
    lines += [f"from     {', '.join(found.splits)}"] if found.splits else []
    lines += [f"note     {note}" for note in found.notes]
    lines += [f"plan     {line}" for line in device_plan_words(found.plans[:_SHOWN])]
    if len(found.plans) > _SHOWN:
        lines.append(f"         and {count(len(found.plans) - _SHOWN, 'more kind')} of devices")
    seconds = found.seconds_of_a_round
    whole = duration(found.seconds)
    lines.append(f"time     about {whole} in all on this machine, {duration(seconds)} for one task of every device")
    return lines


def device_plan_words(plans: Sequence[DevicePlan]) -> list[str]:
    """The task of each kind of device, its cost and its reason."""
    lines = []
    for entry in plans:
        plan, over = entry.plan, "" if entry.plan.fits else "over the budget: "
        names = entry.devices[0] if len(entry.devices) == 1 else f"{len(entry.devices)} × {entry.devices[0]}"
        lines += [
            f"{names}: {plan.trains}; {plan.held}",
            f"  {over}needs {format_bytes(plan.peak)} of {format_bytes(plan.memory)}, {duration(plan.seconds)} of "
            f"virtual time, {format_bytes(plan.down)} down, {format_bytes(plan.up)} up; to train everything: "
            f"{format_bytes(plan.everything)}",
            f"  why: {plan.why}",
        ]
    return lines


def _classes(number: int) -> str:
    return f"{number:,} classes" if number else "the next token is predicted"


def _group(group: DeviceGroup) -> str:
    rate = "planned by memory" if group.rate == "auto" else f"R {group.rate:g}"
    return f"{group.count} × {group.name or group.preset} ({rate}, batch {group.batch})"


def _model(recipe: Recipe) -> str:
    if recipe.model.pretrained:
        return f"{recipe.model.pretrained}, as its checkpoint says"
    facts = {"channels": recipe.data.channels} if SIZES[recipe.model.size].family == "vit" else {}
    # The data's classes and, where it decides, image size are not known before it is read; blocks weigh most.
    image = recipe.data.image_size or recipe.model.patch or SIZES[recipe.model.size].image
    config = recipe.model.config(**facts, image=image)
    return (
        f"{recipe.model.size}: {count(config.depth, 'block')} of width {config.dim}, "
        f"about {_millions(parameter_count(config))} parameters"
    )


def _millions(number: int) -> str:
    return f"{number / 1e6:.0f} M" if number >= 1e7 else f"{number / 1e6:.2f} M"


def _data(data: DataConfig) -> str:
    what = " ".join(part for part in (data.source, data.path) if part)
    size = f", {count(data.train_samples, 'training sample')}" if data.train_samples else ""
    return f"{what}{size}{_there(data)}"


def _there(data: DataConfig) -> str:
    """Whether the files are there; that they are not is worth knowing, but no fault of the recipe."""
    if data.source in ("digits", "hub"):
        return ""
    try:
        if data.source == "folder":
            find(data.path)
        else:
            find_all(data.path, data.train)
    except DataError as error:
        return f" (not found: {error})"
    return " (found)"
