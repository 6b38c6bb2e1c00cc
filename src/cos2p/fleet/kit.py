"""A kit: one machine's folder with its keys. What it is, whose it is, where its server is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cos2p.checksums import check_folder
from cos2p.errors import ConfigError

Role = Literal["server", "admin", "device"]

MARK = "COS2P_KIT"
"""In the environment of all processes of a kit: its folder."""


@dataclass(frozen=True)
class Kit:
    """One machine's folder."""

    folder: Path
    role: Role
    name: str
    """Of the device; `server` and `admin` otherwise."""

    @property
    def startup(self) -> Path:
        return self.folder / "startup"

    @property
    def local(self) -> Path:
        return self.folder / "local"

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    @classmethod
    def open(cls, folder: str | Path, role: Role) -> Kit:
        """The kit in a folder; ConfigError if it is none, or another machine's."""
        path = Path(folder).resolve()
        marks: dict[str, Role] = {"fed_server.json": "server", "fed_admin.json": "admin", "fed_client.json": "device"}
        found = next((kind for file, kind in marks.items() if (path / "startup" / file).is_file()), None)
        if found is None:
            raise ConfigError(f"{folder} is not a kit; make kits with: cos2p fleet provision fleet.toml -o kits/")
        check_folder(path / "startup")
        check_folder(path / "local")
        if found != role:
            articled = {"server": "a server", "admin": "an admin", "device": "a device"}
            raise ConfigError(f"{folder} is the kit of {articled[found]}, not of {articled[role]}")
        name = found if found != "device" else read_json(path / "startup" / "fed_client.json")["client"]["fqsn"]
        return cls(path, found, name)


def server_address(kit: Kit) -> tuple[str, int]:
    """Host and port of the fleet's server, as this kit knows it."""
    if kit.role == "admin":
        admin = json.loads((kit.startup / "fed_admin.json").read_text())["admin"]
        return admin["host"], int(admin["port"])
    name = "fed_server.json" if kit.role == "server" else "fed_client.json"
    target = json.loads((kit.startup / name).read_text())["servers"][0]["service"]["target"]
    host, _, port = target.partition(":")
    return host, int(port)


def read_json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))
