"""`fleet.toml`: which machines take part and where the server is.

name = "lab"

[server]
host = "192.168.1.10"     # as the devices reach it
port = 8102

[[devices]]
name = "pi-1"
"""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import Field, ValidationError, field_validator, model_validator

from cos2p.errors import ConfigError
from cos2p.older_python import tomllib
from cos2p.settings import Settings, problems

RESERVED = ("server", "admin")
"""Names of kits that are no device's."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


class ServerPlace(Settings):
    host: str = Field(default="127.0.0.1", min_length=1, description="Name or address by which devices reach it.")
    port: int = Field(default=8102, ge=1, le=65535, description="The one TCP port that has to be open.")


class PlannedDevice(Settings):
    name: str = Field(description="Unique in the fleet: letters, digits, - and _.")

    @field_validator("name")
    @classmethod
    def _is_a_folder_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name) or name in RESERVED:
            raise ValueError("a device's name has letters, digits, - and _, and is neither `server` nor `admin`")
        return name


class FleetPlan(Settings):
    """Everything `cos2p fleet provision` needs to know."""

    name: str = Field(default="fleet", pattern=r"^[a-z][a-z0-9_]{0,30}$", description="Small letters, digits and _.")
    server: ServerPlace = ServerPlace()
    devices: tuple[PlannedDevice, ...] = Field(min_length=1, description="The devices; more can be added later.")

    @model_validator(mode="after")
    def _names_are_unique(self) -> FleetPlan:
        names = [device.name.lower() for device in self.devices]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two devices are called {twice[0]!r}; every device needs a name of its own")
        return self

    @classmethod
    def load(cls, path: str | Path) -> FleetPlan:
        try:
            values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read the fleet plan {path}: {error.strerror}") from None
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from None
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError(f"{path}: " + "; ".join(problems(error))) from None
