"""`owner.toml` in a device's kit: what its owner accepts of a run, what it may be asked to spend, what it tells.

The file is the owner's alone: the server never sees it, only refusals that name the field. Without one everything is
accepted that the kit itself allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from cos2p.errors import ConfigError, OwnerRefused
from cos2p.older_python import tomllib
from cos2p.settings import Settings, problems
from cos2p.units import parse_bytes

NAME = "owner.toml"

TEMPLATE = """\
# What this device accepts. The file belongs to the device's owner; what it does not allow is refused, by name.

[accept]
# methods = ["cos2p"]                          # names; without the line: any that is installed

[accept.fields]                                # a recipe's field: the values it may have, or the least and the most
# "training.epochs" = {max = 5}
# "data.source" = ["csv", "parquet"]

[spend]
# memory = "2GiB"                              # of training, beside `fleet join --memory`
# disk = "1GB"                                 # tasks, updates and what is remembered, at any time
# seconds_per_day = 3600                       # of training
# bytes_per_day = "2GB"                        # of tasks and updates, both ways

[send]
# report = "none"                              # no losses and scores, also if a recipe asks for them
"""

Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Value = bool | int | float | str


class Bounds(Settings):
    min: float | None = Field(default=None, description="The least that is accepted.")
    max: float | None = Field(default=None, description="The most.")

    def allow(self, value: Any) -> bool:
        if not isinstance(value, int | float):
            return value is None
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)


class Accept(Settings):
    methods: tuple[str, ...] = Field(default=(), description="Names of methods; empty: any that is installed.")
    fields: dict[str, Bounds | tuple[Value, ...] | Value] = Field(
        default={}, description="A recipe's field by its path: the values it may have, or `min` and `max`."
    )


class Spend(Settings):
    memory: Bytes = Field(default=0, ge=0, description="Bytes of training; 0: as `fleet join --memory` says.")
    disk: Bytes = Field(default=0, ge=0, description="Bytes of tasks, updates and what is remembered; 0: no limit.")
    seconds_per_day: float = Field(default=0.0, ge=0, description="Of training; 0: no limit.")
    bytes_per_day: Bytes = Field(default=0, ge=0, description="Of tasks and updates, both ways; 0: no limit.")


class SendRules(Settings):
    report: Literal["asked", "none"] = Field(
        default="asked", description="asked: losses and scores if a recipe asks for them; none: never."
    )


class OwnerFile(Settings):
    """The owner's word."""

    accept: Accept = Accept()
    spend: Spend = Spend()
    send: SendRules = SendRules()

    @classmethod
    def read(cls, kit: Path) -> OwnerFile:
        """The kit's own; ConfigError if it is there and cannot be read: nothing is accepted on a guess."""
        path = kit / NAME
        if not path.exists():
            return cls()
        try:
            return cls.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from None
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from None
        except ValidationError as error:
            raise ConfigError(f"{path}: " + "; ".join(problems(error))) from None

    def check_recipe(self, recipe: Mapping[str, Any]) -> None:
        """OwnerRefused, naming the field, for a run this device does not take part in."""
        method = recipe.get("method", {}).get("name")
        if self.accept.methods and method not in self.accept.methods:
            raise _refused(f"method.name = {method!r}")
        for path, rule in self.accept.fields.items():
            value = _at(recipe, path)
            if not _allows(rule, value):
                raise _refused(f"{path} = {value!r}")

    def check_order(self, settings: Mapping[str, Any]) -> None:
        """A task may not ask for more than the recipe said: the rules of `training.…` hold for its settings too."""
        own = settings.get("local", settings)
        for path, rule in self.accept.fields.items():
            table, _, field = path.partition(".")
            if table == "training" and field in own and not _allows(rule, own[field]):
                raise _refused(f"{path} = {own[field]!r}, in a task")

    def smaller_memory(self, memory: int) -> int:
        """The smaller of both; 0: no limit at all."""
        return min((m for m in (memory, self.spend.memory) if m), default=0)


def _refused(what: str) -> OwnerRefused:
    return OwnerRefused(f"{what} is not accepted by {NAME} of this device", told=f"{what} is not accepted")


def _at(recipe: Mapping[str, Any], path: str) -> Any:
    place: Any = recipe
    for key in path.split("."):
        if isinstance(place, Mapping):
            place = place.get(key)
        elif isinstance(place, list | tuple) and key.isdigit() and int(key) < len(place):
            place = place[int(key)]
        else:
            return None
    return place


def _allows(rule: Bounds | tuple[Value, ...] | Value, value: Any) -> bool:
    if isinstance(rule, Bounds):
        return rule.allow(value)
    return value in (rule if isinstance(rule, tuple) else (rule,))
