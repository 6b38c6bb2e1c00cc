"""A kit: one machine's folder with its keys. What it is, whose it is, where its server is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal

from cos2p.checksums import check_folder
from cos2p.errors import ConfigError

Role = Literal["server", "admin", "device"]

MARK = "COS2P_KIT"
"""In the environment of all processes of a kit: its folder."""


@dataclass(frozen=True)
class Kit:
    folder: Path
    role: Role
    name: str
    """The device's name; `server` and `admin` otherwise."""

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
        if found == "server":
            check_folder(path)  # of who was revoked
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


# A kit's certificate: from when to when it holds, checked before TLS says "handshake failure".


RENEW_DAYS = 30
"""A certificate that ends sooner is worth a warning."""


def validity(path: Path) -> tuple[datetime, datetime]:
    """First and last moment of the certificate in a file."""
    from cryptography import x509

    found = x509.load_pem_x509_certificates(path.read_bytes())[0]
    return found.not_valid_before_utc, found.not_valid_after_utc


def kit_validity(kit: Kit) -> tuple[datetime, datetime]:
    name = "server.crt" if kit.role == "server" else "client.crt"
    try:
        return validity(kit.startup / name)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{kit.startup / name} cannot be read ({error}); the kit is damaged") from None


def check_clock(kit: Kit, now: datetime | None = None) -> str:
    """A warning if the certificate ends soon, else nothing. ConfigError if it does not hold now, by this clock: TLS
    would fail on both sides without saying why."""
    now = now or datetime.now(timezone.utc)
    first, last = kit_validity(kit)
    if not first <= now <= last:
        raise ConfigError(
            f"this machine's clock says {now:%Y-%m-%d %H:%M} UTC, and the certificate of {kit.folder} holds from "
            f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M}: set the clock, or, if it is right, make a new kit with: "
            f"cos2p fleet provision fleet.toml -o kits/ --renew {kit.name}"
        )
    if last - now < timedelta(days=RENEW_DAYS):
        return (
            f"the certificate of {kit.folder} ends on {last:%Y-%m-%d}, in {(last - now).days} days; make a new kit "
            f"with: cos2p fleet provision fleet.toml -o kits/ --renew {kit.name}"
        )
    return ""


def check_keys(kit: Kit) -> None:
    """ConfigError if others can read the kit's key: whoever reads it can act in its name."""
    for key in kit.startup.glob("*.key"):
        if key.stat().st_mode & 0o077:
            raise ConfigError(f"{key} can be read by others; close the kit first: chmod -R go= {kit.folder}")
