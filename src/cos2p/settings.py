"""Base of every group of settings: frozen, typed, unknown fields refused, each field with a line that explains it."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

RENAMED: dict[str, str] = {
    "training.savings": "training.memory_optimizations",
    'training.label_skew="corrected"': '"logit-adjustment"',
    'training.memory_optimizations.micro_batch="needed"': '"auto"',
    'training.memory_optimizations.recompute="needed"': '"auto"',
    'robust.suspicion="bench"': '"exclude"',
    'partition.kind="hsu"': '"dirichlet" (its alpha is for each class: divide yours by their number)',
    'partition.kind="lda"': '"dirichlet" (the sizes of shards are given, not drawn)',
    "data.label_names": "data.classes, and data.test_classes for the names in the test file's order,",
    "fleet.devices.sessions": "fleet.devices.online",
    "fleet.devices.spread.down": "fleet.devices.spread.network",
    "fleet.devices.spread.up": "fleet.devices.spread.network",
}
"""Fields and values of recipes up to 0.1.0, and their names since."""

OTHER_WORDS = {"learning_rate": "lr", "batch_size": "batch", "num_epochs": "epochs", "num_rounds": "rounds"}
"""Other libraries' names of a field."""

GONE = {
    "attack.devices": "the last `attack.count` devices lie",
    "attack.strength": 'write it behind the kind, "flip:15"',
    "attack.from_version": "they lie from the start",
    "data.chat_template": "put the template next to the tokenizer, as chat_template.jinja",
    "data.subset": 'write it behind the name, path = "nyu-mll/glue:sst2"',
    "data.test_labels": "the name follows from that of the image file",
    "data.token_cache": "token ids are always kept",
    "data.train_labels": "the name follows from that of the image file",
    "data.validation_labels": "the name follows from that of the image file",
    "fleet.begins_at": "a run begins at midnight; move the hours of `fleet.devices.online`",
    "fleet.devices.dies_at": "give `online` a file with the seconds from and to which it is there",
    "fleet.devices.downtime": "a device is back after a minute; a `trace` has a column of that name",
    "fleet.devices.jitter": "the preset's holds; a `trace` has a column of that name",
    "fleet.devices.joins_at": "give `online` a file with the seconds from and to which it is there",
    "fleet.devices.latency": "the preset's holds; a `trace` has a column of that name",
    "fleet.devices.leaves_at": "give `online` a file with the seconds from and to which it is there",
    "fleet.devices.sessions_period": "write the sessions out for the whole run",
    "fleet.target_seconds": "memory alone decides; set `rate` where a task takes too long",
    "method.hinge_slope": "staleness is damped by (τ+1)^(−exponent)",
    "method.hinge_start": "staleness is damped by (τ+1)^(−exponent)",
    "method.server_lr": "the server's step is 1, plain averaging",
    "method.staleness": "staleness is damped by (τ+1)^(−exponent); exponent = 0 does not damp",
    "model.image": "images have the size that the data has (`data.image_size`)",
    "partition.minimum": "a device gets at least two samples",
    "privacy.denominator": "it follows from the rates and the schedule",
    "privacy.participations": "set `privacy.multiplier`, or leave it to `schedule`",
    "robust.most_held": "32 updates of a round are kept",
    "robust.patience": "a device is excluded after five updates in a row that count for nothing",
    "robust.trim": "a quarter is left out at each end",
    "run.address": "set the environment variable RAY_ADDRESS",
    "training.memory_optimizations.bf16": "features are float32; in bf16 some models lost half of their accuracy",
    "schedule.choose": "those who take part are drawn evenly",
    "schedule.max_failures": "five tasks in a row may fail",
    "schedule.max_staleness": "updates of any age are merged, each by its weight",
    "schedule.max_in_flight": "set `schedule.clients_per_round`",
}
"""Fields of recipes up to 0.1.0 that are gone, and the rule in their place."""


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


def shared(settings: Settings, kind: type[Settings]) -> dict[str, Any]:
    """The values of the fields that `settings` has from `kind`, a class it derives from: to pass them on."""
    return {name: getattr(settings, name) for name in kind.model_fields}


def problems(error: ValidationError, path: str = "", kind: type[BaseModel] | None = None) -> list[str]:
    """One line for each wrong field: its path, what is wrong, what was given. `kind` knows how fields are spelt."""
    lines = []
    places = [entry["loc"] for entry in error.errors()]
    for entry in error.errors():
        loc = entry["loc"]
        if loc[-1:] == ("literal['auto']",):
            continue  # the other kind of value is what was meant
        if any(len(place) > len(loc) and place[: len(loc)] == loc for place in places):
            continue  # a list with a wrong entry also counts as too short; the entry is the cause
        if (*loc[:-1], "literal['auto']") in places:
            loc = loc[:-1]
        loc = loc[:-1] if loc[-1:] == ("[key]",) else loc  # a wrong name in a table of names
        where = ".".join([path, *map(str, loc)] if path else map(str, loc)) or "recipe"
        name = ".".join(part for part in where.split(".") if not part.isdigit())
        if name in GONE:
            lines.append(f"{where}: gone since 0.1.0; {GONE[name]}")
        elif now := RENAMED.get(name) or RENAMED.get(f'{where}="{entry["input"]}"'):
            lines.append(f"{where}: {'the field' if name in RENAMED else repr(entry['input'])} is called {now} now")
        elif entry["type"] == "extra_forbidden":
            lines.append(f"{where}: there is no such field{_did_you_mean(kind, loc)}")
        elif entry["type"] == "missing":
            lines.append(f"{where}: missing")
        else:
            lines.append(f"{where}: {entry['msg'].removeprefix('Value error, ')} (got {_short(entry['input'])})")
    return lines


def _did_you_mean(kind: type[BaseModel] | None, loc: tuple[int | str, ...]) -> str:
    for step in loc[:-1]:
        if kind is None or isinstance(step, int):
            continue
        field = kind.model_fields.get(step)
        kind = None if field is None else _nested(field.annotation)
    name = OTHER_WORDS.get(str(loc[-1]), str(loc[-1]))
    close = get_close_matches(name, kind.model_fields, n=1) if kind is not None else []
    return f"; did you mean {close[0]!r}?" if close else ""


def _nested(annotation: Any) -> type[BaseModel] | None:
    """The settings behind a field's type, be they one or a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _nested(part)) is not None), None)


def _short(value: object, length: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= length else text[:length] + " ..."


def merged_tables(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables, `above` over `below`; values that are not tables (settings already checked) are taken as they are.

    >>> merged_tables({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    """
    merged = dict(below)
    for name, value in above.items():
        nested = isinstance(value, Mapping) and isinstance(below.get(name), Mapping)
        merged[name] = merged_tables(below[name], value) if nested else value
    return merged
