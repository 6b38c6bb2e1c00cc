"""Kits: one folder per machine with its keys, made once by `cos2p fleet provision` and carried to the machine.

    kits/server/    certificate and key, our component for clients that come back, later the runs' checkpoints
    kits/admin/     who may start runs
    kits/pi-1/      a device
    kits/authority/ the fleet's certificate authority: needed to add devices later, never leaves this machine

A kit can be moved: nothing in it names the folder it lies in. NVFlare's absolute paths are written when the kit is
started.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, ValidationError, field_validator, model_validator

from cos2p.checksums import note_folder
from cos2p.errors import ConfigError
from cos2p.fleet.kit import Kit
from cos2p.fleet.nvflare import require_nvflare
from cos2p.fleet.nvflare.provisioning import ADMIN, forget_keys, issue, tidy, tune
from cos2p.older_python import tomllib
from cos2p.settings import Settings, problems


def keep_private(folder: Path) -> None:
    """Readable by the owner alone: whoever reads a key acts in its name."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o700 if path.is_dir() else 0o600)


def provision(
    plan: FleetPlan, folder: str | Path, renew: Sequence[str] = (), packages: Sequence[Path] = ()
) -> list[Kit]:
    """Make the kits of all machines that have none yet. Existing ones are left alone, so devices can be added; those
    in `renew` get new keys, and what the owner has written into the old kit. `packages` (cos2p as a wheel, or its
    sources) are put into those of server and devices that are made now."""
    require_nvflare()
    root = Path(folder).resolve()
    authority = root / "authority"
    authority.mkdir(parents=True, exist_ok=True)
    names = {"server": plan.server.host, "admin": ADMIN} | {d.name: d.name for d in plan.devices}
    if unknown := [name for name in renew if name not in names]:
        raise ConfigError(f"--renew {unknown[0]}: the fleet has {', '.join(names)}")
    forget_keys(authority, (names[name] for name in renew))
    made = issue(plan, authority)
    keep_private(authority)
    kits = []
    for name, participant in names.items():
        place = root / name
        if name in renew and place.exists():
            shutil.copytree(made / participant / "startup", place / "startup", dirs_exist_ok=True)
            tidy(place)
            note_folder(place / "startup")
            keep_private(place)
            kits.append(Kit.open(place, "device" if name not in ("server", "admin") else name))  # type: ignore[arg-type]
        elif not place.exists():
            shutil.copytree(made / participant, place)
            tune(place, name, plan)
            note_folder(place / "startup")
            keep_private(place)
            kits.append(Kit.open(place, "device" if name not in ("server", "admin") else name))  # type: ignore[arg-type]
    shutil.rmtree(made)
    for kit in kits:
        if packages and kit.role != "admin":
            for package in packages:
                shutil.copy(package, kit.folder)
            keep_private(kit.folder)
    return kits


# ---------------------------------------------------------------- fleet.toml


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
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from None
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError(f"{path}: " + "; ".join(problems(error))) from None
