"""`Recipe`: a complete named run. Typed, validated once at the door, TOML in and out; no default hidden elsewhere."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from cos2p.data.config import DataConfig
from cos2p.errors import ConfigError, RecipeError
from cos2p.fleet.devices import Device, device
from cos2p.models.config import ExitKind, ModelConfig, Pooling
from cos2p.models.sizes import SIZES, model
from cos2p.recipes import recipe_text
from cos2p.settings import Settings, problems
from cos2p.training.settings import LabelSkew, OptimizerName


class ModelSettings(Settings):
    """A named size, any field of which can be changed; or a Hugging Face checkpoint."""

    size: str = Field(default="vit-nano", description="Named size: `vit-tiny`, `vit-base`, `bert-small` ...")
    pretrained: str = Field(default="", description="Folder or hub name of a Hugging Face checkpoint; empty: fresh.")
    dim: int | None = Field(default=None, ge=1, description="Residual width.")
    depth: int | None = Field(default=None, ge=1, description="Number of blocks L.")
    heads: int | None = Field(default=None, ge=1, description="Attention heads per block.")
    kv_heads: int | None = Field(default=None, ge=1, description="Key/value heads (llama).")
    mlp: int | None = Field(default=None, ge=1, description="MLP units per block.")
    image: int | None = Field(default=None, ge=1, description="Edge of the image in pixels.")
    patch: int | None = Field(default=None, ge=1, description="Edge of a patch in pixels.")
    exits: ExitKind | None = Field(default=None, description="`bank`: an exit per depth; `shared`: one for all.")
    pooling: Pooling | None = Field(
        default=None,
        description="What a classifier reads: the `cls` token, the `last` one, or the `mean` of all real tokens. "
        "Empty: what the checkpoint says, or the habit of its family.",
    )

    @property
    def chosen(self) -> dict[str, Any]:
        """The fields that are set, as those of a `ModelConfig`."""
        return self.model_dump(exclude={"size", "pretrained"}, exclude_none=True)

    def config(self, **facts: Any) -> ModelConfig:
        """The model's shape; `facts` are what the data says (task, classes, channels, vocabulary)."""
        return model(self.size, **{**facts, **self.chosen})


class PartitionSettings(Settings):
    """How the training samples are dealt to the devices."""

    kind: Literal["dirichlet", "hsu", "lda", "iid", "natural"] = Field(
        default="dirichlet",
        description="`dirichlet`: alpha for each class; `hsu`: alpha over all; `lda`; `iid`; `natural`: by groups.",
    )
    alpha: float = Field(default=1.5, gt=0, description="Dirichlet concentration: 0.1 very unequal, 100 nearly equal.")
    local_test: float = Field(
        default=0.2, ge=0, lt=1, description="Share of a device's data kept to test its submodel."
    )
    minimum: int = Field(
        default=2, ge=1, description="Fewest samples a device may get; otherwise the draw is repeated."
    )


class DeviceGroup(Settings):
    """`count` devices of one kind."""

    preset: str = Field(default="laptop", description="Named device; any of its figures can be changed below.")
    count: int = Field(default=1, ge=1, description="How many of them.")
    name: str = Field(default="", description="Name of the devices (numbered); empty: the preset's.")
    rate: float | None = Field(
        default=None, gt=0, le=1, description="R_n: share of the model a device trains. Empty: chosen by its memory."
    )
    batch: int = Field(default=32, ge=1, description="Samples per step on this kind of device.")
    share: float | None = Field(default=None, gt=0, description="Share of the data, relative; empty: the batch.")
    flops: float | None = Field(default=None, gt=0, description="Training FLOP/s (peak × utilisation).")
    memory: str | int | None = Field(default=None, description="Bytes for training: 600MB, 2GiB.")
    down: str | float | None = Field(default=None, description="Download, bytes per second or 100Mbit/s.")
    up: str | float | None = Field(default=None, description="Upload, bytes per second or 50Mbit/s.")
    jitter: float | None = Field(default=None, ge=0, le=2, description="Spread of durations, 0 to 0.3.")
    latency: float | None = Field(default=None, ge=0, description="Seconds added to every transfer.")
    joins_at: float | None = Field(default=None, ge=0, description="Virtual second at which it joins.")
    leaves_at: float | None = Field(default=None, ge=0, description="Virtual second at which it leaves for good.")
    dies_at: float | None = Field(default=None, ge=0, description="Virtual second at which it falls silent.")
    drop_rate: float | None = Field(default=None, ge=0, le=1, description="Chance that a task is lost, 0 to 0.2.")
    downtime: float | None = Field(default=None, ge=0, description="Seconds until it is back after a lost task.")

    def device(self, name: str) -> Device:
        own = {"preset", "count", "name", "rate", "batch", "share"}
        changes = {key: value for key, value in self.model_dump(exclude=own).items() if value is not None}
        return device(self.preset, name=name, **changes)


class FleetSettings(Settings):
    devices: tuple[DeviceGroup, ...] = Field(min_length=1, description="Groups of equal devices.")
    target_seconds: float = Field(
        default=0.0, ge=0, description="Wanted seconds per task where no rate is given; 0: only memory decides."
    )
    heartbeat_seconds: float = Field(
        default=60.0, ge=0, description="Seconds of silence after which the server takes a device for gone."
    )
    enforce_memory: bool = Field(default=True, description="Refuse a submodel that does not fit a device's memory.")


class TrainingSettings(Settings):
    """Local training, the same for every method."""

    epochs: int = Field(default=5, ge=1, description="E: passes over the local data per task.")
    optimizer: OptimizerName = Field(default="adan", description="adan (the paper's), adamw or sgd.")
    lr: float = Field(default=2e-3, gt=0, description="η at the start of the run.")
    lr_schedule: Literal["cosine", "constant"] = Field(default="cosine", description="Over the whole run.")
    lr_floor: float = Field(default=0.0, ge=0, le=1, description="Where the cosine ends, as a share of lr.")
    weight_decay: float = Field(default=0.0, ge=0, description="Decoupled weight decay, 0 to 0.1.")
    label_skew: LabelSkew = Field(
        default="ignored",
        description="`corrected`: devices add log(share of each class in their data) to the logits while they train.",
    )


class ScheduleSettings(Settings):
    """When the server aggregates and when the run ends."""

    rounds: int | None = Field(default=None, ge=1, description="Q: aggregations. Empty: `updates` decides alone.")
    updates: int | None = Field(
        default=None, ge=1, description="Client updates in all: the fair measure between methods. Empty: no limit."
    )
    virtual_seconds: float | None = Field(default=None, gt=0, description="End of virtual time. Empty: no limit.")
    mu: float = Field(default=0.5, gt=0, le=1, description="μ: share of the devices that must have reported.")
    t_clk: float = Field(default=60.0, ge=0, description="T_clk: seconds the server then waits for more.")
    redispatch: Literal["at-once", "at-aggregation"] = Field(
        default="at-once", description="When a device that reported gets its next task (semi-asynchronous methods)."
    )
    task_timeout: float | None = Field(
        default=None, gt=0, description="Seconds after which a device is not waited for."
    )
    max_staleness: int | None = Field(default=None, ge=0, description="Drop updates older than this. Empty: keep all.")
    max_update_rms: float = Field(default=10.0, gt=0, description="Refuse updates with a larger root mean square.")
    evaluate_every: int = Field(default=1, ge=1, description="Rounds between evaluations of the server's model.")
    evaluate_samples: int = Field(
        default=0, ge=0, description="Test samples used during the run (the last evaluation uses all). 0: all."
    )
    patience: int = Field(
        default=0, ge=0, description="Stop after this many evaluations without a better one; 0: never."
    )

    @model_validator(mode="after")
    def _ends(self) -> ScheduleSettings:
        if self.rounds is None and self.updates is None:
            raise ValueError("give `rounds` or `updates` (or both): the run needs an end")
        return self


class RunSettings(Settings):
    workers: int = Field(default=0, ge=0, description="Worker processes; 0: one for each core. Never changes a result.")
    checkpoint_seconds: float = Field(
        default=10.0, ge=0, description="Wall seconds between checkpoints; 0: every round."
    )


class Recipe(Settings):
    """A complete run.

    >>> Recipe.load("quickstart").model.size
    'vit-nano'
    """

    name: str = Field(min_length=1, description="What the run is called.")
    description: str = Field(default="", description="One line for `cos2p recipes ls`.")
    seed: int = Field(default=0, ge=0, description="The same seed gives the same run, bit for bit.")
    model: ModelSettings = ModelSettings()
    data: DataConfig = DataConfig()
    partition: PartitionSettings = PartitionSettings()
    fleet: FleetSettings
    training: TrainingSettings = TrainingSettings()
    schedule: ScheduleSettings
    method: dict[str, Any] = Field(default={"name": "cos2p"}, description="`name` and the method's own settings.")
    run: RunSettings = RunSettings()

    @classmethod
    def parse(cls, values: Mapping[str, Any], origin: str = "recipe") -> Recipe:
        """The recipe, or a `RecipeError` that names every wrong field at once."""
        if wrong := recipe_problems(values):
            raise RecipeError(f"{origin}: " + "; ".join(wrong))
        from cos2p.methods import method_settings  # methods import recipes' types

        recipe = cls.model_validate(dict(values))
        filled = {"name": recipe.method["name"], **method_settings(recipe.method).model_dump(mode="json")}
        return recipe.model_copy(update={"method": filled})

    @classmethod
    def load(cls, name_or_path: str | Path, changes: Iterable[str] = (), method: str | None = None) -> Recipe:
        """A shipped recipe by name or a TOML file, perhaps with another method, with `path.to.field=value` changes."""
        values = recipe_values(name_or_path, changes, method)
        return cls.parse(values, str(name_or_path))


def recipe_values(name_or_path: str | Path, changes: Iterable[str] = (), method: str | None = None) -> dict[str, Any]:
    """The recipe's tables, changed, before anything is checked."""
    values = tomllib_load(recipe_text(name_or_path), str(name_or_path))
    if method is not None:
        switch_method(values, method)
    for change in changes:
        apply_change(values, change)
    return values


def switch_method(values: dict[str, Any], name: str) -> None:
    """Take another method. The settings stay if both methods have the same ones, else they are the new defaults."""
    from cos2p.methods import method_class, methods

    old = values.get("method", {"name": "cos2p"})
    known = methods().get(str(old.get("name"))) if isinstance(old, dict) else None
    same = known is not None and known.settings_type is method_class(name).settings_type
    values["method"] = {**(old if same else {}), "name": name}


def recipe_problems(values: Mapping[str, Any]) -> list[str]:
    """One line for each wrong field, from the whole recipe and from its method; empty if it can run."""
    from cos2p.methods import method_settings

    wrong: list[str] = []
    try:
        Recipe.model_validate(dict(values))
    except ValidationError as error:
        wrong += problems(error)
    method = values.get("method", {"name": "cos2p"})
    if isinstance(method, Mapping):
        try:
            method_settings(method)
        except ValidationError as error:
            wrong += problems(error, "method")
        except ConfigError as error:
            wrong.append(f"method.name: {error}")
    return wrong + _model_problems(values) + _device_problems(values)


def _model_problems(values: Mapping[str, Any]) -> list[str]:
    """A size that does not exist or fields that contradict each other, as far as that shows without the data."""
    try:
        settings = ModelSettings.model_validate(values.get("model", {}))
        image_size = DataConfig.model_validate(values.get("data", {})).image_size
    except ValidationError:
        return []  # those fields are reported already
    if settings.pretrained:
        return []
    known = SIZES.get(settings.size)
    patch = settings.patch or (known.patch if known else 1)
    try:
        settings.config(image=image_size or patch)  # the data's own image size is not known yet: any that fits
    except ConfigError as error:
        return [f"model: {error}"]
    return []


def _device_problems(values: Mapping[str, Any]) -> list[str]:
    fleet = values.get("fleet")
    groups = fleet.get("devices") if isinstance(fleet, Mapping) else None
    wrong = []
    for number, fields in enumerate(groups if isinstance(groups, list | tuple) else ()):
        try:
            group = DeviceGroup.model_validate(fields)
            group.device(group.name or group.preset)
        except ValidationError:
            continue  # reported already
        except ConfigError as error:
            wrong.append(f"fleet.devices.{number}: {error}")
    return wrong


def tomllib_load(text: str, origin: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{origin} is not valid TOML: {error}") from None


def apply_change(values: dict[str, Any], change: str) -> None:
    """`path.to.field=value`; the value is TOML, and a bare word is a string.

    >>> values = {"schedule": {"rounds": 9}}
    >>> apply_change(values, "schedule.rounds=2"); values
    {'schedule': {'rounds': 2}}
    """
    path, separator, text = change.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not separator or not all(keys):
        raise ConfigError(f"cannot read the change {change!r}; write path.to.field=value")
    try:
        value = tomllib.loads(f"v = {text.strip()}")["v"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    place: Any = values
    for key in keys[:-1]:
        if isinstance(place, list) and key.isdigit() and int(key) < len(place):
            place = place[int(key)]
        elif isinstance(place, dict):
            place = place.setdefault(key, {})
        else:
            raise ConfigError(f"cannot set {path!r}: {key!r} is not a table of the recipe")
    if isinstance(place, list) and keys[-1].isdigit() and int(keys[-1]) < len(place):
        place[int(keys[-1])] = value
    elif isinstance(place, dict):
        if text.strip() == "":
            place.pop(keys[-1], None)
        else:
            place[keys[-1]] = value
    else:
        raise ConfigError(f"cannot set {path!r}: {keys[-2]!r} is not a table of the recipe")
