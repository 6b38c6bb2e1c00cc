"""`Recipe`: a complete named run. Typed, validated once, when it is read, TOML in and out; no default hidden
elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from cos2p.accelerator import Accelerator
from cos2p.aggregation.settings import PrivacySettings, RobustSettings, ScheduleSettings
from cos2p.data.config import DataConfig
from cos2p.data.partition import PartitionSettings
from cos2p.devices.attacks import AttackSettings
from cos2p.devices.settings import FleetSettings
from cos2p.errors import ConfigError, RecipeError
from cos2p.methods import import_method, method_class, method_settings, methods
from cos2p.models.sizes import SIZES, ModelSettings
from cos2p.older_python import tomllib
from cos2p.recipes import recipe_text
from cos2p.settings import Settings, merged_tables, problems
from cos2p.training.embeddings import Embeddings
from cos2p.training.settings import TrainingSettings
from cos2p.units import parse_bytes


class RunSettings(Settings):
    engine: Literal["local", "ray"] = Field(
        default="local",
        description="Where simulated devices train: in processes of this machine, or as workers of a Ray cluster "
        "(that of RAY_ADDRESS, else the one this machine belongs to). "
        "Never changes a result.",
    )
    workers: int = Field(
        default=0, ge=0, description="Worker processes; 0: one for each core (of the cluster). Never changes a result."
    )
    accelerator: Accelerator = Field(
        default="cpu",
        description="What the server's model is evaluated with: `cpu`, `cuda`, `cuda:1`, `mps`, or `auto`, the GPU if "
        "there is one.",
    )
    checkpoint_seconds: float = Field(
        default=10.0, ge=0, description="Wall seconds between checkpoints; 0: every round."
    )
    device_models: Annotated[int, BeforeValidator(parse_bytes)] = Field(
        default=200_000_000,
        ge=0,
        description="Bytes, such as 1GB, for the devices' own submodels in the run folder (`devices/`), an equal share "
        "for each; one that is larger is not kept. On a fleet each device keeps its own, in its kit, up to so many "
        "bytes. 0: none. Never changes a result.",
    )


class Recipe(Settings):
    """A complete run.

    >>> Recipe.load("quickstart").model.size
    'vit-nano'
    """

    name: str = Field(min_length=1, description="What the run is called.")
    description: str = Field(default="", description="One line for `cos2p recipes ls`.")
    seed: int = Field(
        default=0, ge=0, description="The same seed gives the same run, bit for bit on one kind of processor."
    )
    model: ModelSettings = ModelSettings()
    data: DataConfig = DataConfig()
    partition: PartitionSettings = PartitionSettings()
    fleet: FleetSettings
    training: TrainingSettings = TrainingSettings()
    schedule: ScheduleSettings
    privacy: PrivacySettings = PrivacySettings()
    robust: RobustSettings = RobustSettings()
    attack: AttackSettings = AttackSettings()
    method: dict[str, Any] = Field(default={"name": "cos2p"}, description="`name` and the method's own settings.")
    run: RunSettings = RunSettings()

    @classmethod
    def parse(cls, values: Mapping[str, Any], origin: str = "recipe", own: bool = False) -> Recipe:
        """The recipe, or a `RecipeError` that names every wrong field at once.

        `own`: it is one that this machine's user runs, handed on by another process: a method that it names
        `module:Class` is imported.
        """
        for name in filter(lambda name: own and ":" in name, _method_names(values)):
            import_method(name)
        values = with_form(values)
        if wrong := recipe_problems(values):
            raise RecipeError(f"{origin}: " + "; ".join(wrong))
        recipe = cls.model_validate(dict(values))
        filled = {"name": recipe.method["name"], **method_settings(recipe.method).model_dump(mode="json")}
        return recipe.model_copy(update={"method": filled})

    @property
    def embeddings(self) -> Embeddings:
        """`training.embeddings`, or whole tables where the method's devices cannot do with rows."""
        chosen = self.training.embeddings
        return chosen if chosen in method_class(self.method["name"]).embeddings else "whole"

    @classmethod
    def load(
        cls,
        name_or_path: str | Path,
        changes: Iterable[str] = (),
        method: str | None = None,
        modules: Iterable[Path] | None = None,
    ) -> Recipe:
        """A shipped recipe by name or a TOML file, perhaps with another method, with `path.to.field=value` changes.

        A method that is named `module:Class` is imported, from `modules` too: by default from the recipe's folder and
        the current one.
        """
        values = recipe_values(name_or_path, changes, method, modules)
        return cls.parse(values, str(name_or_path))


def recipe_values(
    name_or_path: str | Path,
    changes: Iterable[str] = (),
    method: str | None = None,
    modules: Iterable[Path] | None = None,
) -> dict[str, Any]:
    """The recipe's tables, changed, before anything is checked."""
    values, changes = tomllib_load(recipe_text(name_or_path), str(name_or_path)), tuple(changes)
    modules = (Path(name_or_path).parent, Path.cwd()) if modules is None else modules
    named = [change.partition("=")[2].strip(" \"'") for change in changes if change.startswith("method.name=")]
    for name in (method, *named, *_method_names(values)):
        if name is not None and ":" in name:
            import_method(name, modules)
    if method is not None:
        switch_method(values, method)
    before = dict(values["method"]) if isinstance(values.get("method"), dict) else None
    for change in changes:
        apply_change(values, change)
        if change.partition("=")[0].strip() == "method.name":
            _refuse_foreign_settings(before, values["method"])
    return values


def _method_names(values: Mapping[str, Any]) -> list[str]:
    method = values.get("method")
    return [str(method.get("name"))] if isinstance(method, Mapping) else []


def _refuse_foreign_settings(before: Any, after: Mapping[str, Any]) -> None:
    """Another name alone would leave the settings of the method before."""
    name, known = str(after.get("name")), methods()
    old = known.get(str(before.get("name"))) if isinstance(before, Mapping) else None
    new = known.get(name)
    if old is not None and new is not None and len(after) > 1 and old.settings_type is not new.settings_type:
        raise ConfigError(
            f"method.name={name} would keep the settings of {old.name!r}; take another method with --method {name} "
            f"(in Python: Recipe.load(..., method={name!r}))"
        )


def switch_method(values: dict[str, Any], name: str) -> None:
    """Take another method. The settings stay if both methods have the same ones, else they are the new defaults."""
    old = values.get("method", {"name": "cos2p"})
    known = methods().get(str(old.get("name"))) if isinstance(old, dict) else None
    same = known is not None and known.settings_type is method_class(name).settings_type
    values["method"] = {**(old if same else {}), "name": name}


def with_form(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Below what is named: the method's own defaults for pretrained models, and the model's for such a method."""
    model, method = values.get("model", {}), values.get("method", {"name": "cos2p"})
    if not (isinstance(model, Mapping) and isinstance(method, Mapping)):
        return values
    known = methods().get(str(method.get("name")))
    if known is None:
        return values
    if model.get("pretrained"):
        data = values.get("data")
        language = isinstance(data, Mapping) and data.get("task", "classification") != "classification"
        method = merged_tables(known.pretrained(language), method)
    shape = {name: value for name, value in known.model_defaults(method).items() if model.get(name) is None}
    return {**values, "method": method, **({"model": {**model, **shape}} if shape else {})}


def recipe_problems(values: Mapping[str, Any]) -> list[str]:
    """One line for each wrong field, from the whole recipe and from its method; empty if it can run."""
    wrong = [f"{path}: has a NUL character, which no name or path can have" for path in _with_nul(values)]
    if wrong:
        return wrong
    method = values.get("method", {"name": "cos2p"})
    if isinstance(method, Mapping):
        try:
            method_settings(method)
        except ValidationError as error:
            wrong += problems(error, "method", method_class(str(method.get("name"))).settings_type)
        except ConfigError as error:
            wrong.append(f"method.name: {error}")
    try:
        recipe = Recipe.model_validate(dict(values))
    except ValidationError as error:
        return [*problems(error, kind=Recipe), *wrong]
    return wrong or list(_contradictions(recipe))


def _with_nul(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, str) and "\0" in value:
        yield path
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _with_nul(item, f"{path}.{key}" if path else str(key))


def _contradictions(recipe: Recipe) -> Iterator[str]:
    """Fields that do not go together, as far as that shows without the data."""
    model = recipe.model
    if not model.pretrained:
        any_that_fits = model.patch or SIZES[model.size].patch  # the data's own is not known yet
        try:
            model.config(image=recipe.data.image_size or any_that_fits)
        except ConfigError as error:
            yield f"model: {error}"
    for number, group in enumerate(recipe.fleet.devices):
        if group.base and not model.pretrained:
            yield f"fleet.devices.{number}.base: a fresh model has no checkpoint; set model.pretrained"
        try:
            group.device(group.name or group.preset)
        except ConfigError as error:
            yield f"fleet.devices.{number}: {error}"
    has = method_class(recipe.method["name"]).embeddings
    if recipe.training.embeddings == "frozen" and "frozen" not in has:  # that it keeps all rows is no problem
        listed = " or ".join(map(repr, has))
        yield f"training.embeddings: 'frozen' is not for the method {recipe.method['name']!r}; it has {listed}"
    if recipe.privacy.on and recipe.training.lr == "auto":  # losses follow from the data, and no noise covers them
        yield "training.lr: 'auto' is not for private runs, because devices would report losses; set a number"


def tomllib_load(text: str, origin: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
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
    except (ValueError, RecursionError):
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
