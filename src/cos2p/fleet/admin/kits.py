"""Kits: one folder per machine with its keys, made once by `cos2p fleet provision` and carried to the machine.

    kits/server/    certificate and key, our component for clients that come back, later the runs' checkpoints
    kits/admin/     who may start runs
    kits/pi-1/      a device
    kits/authority/ the fleet's certificate authority: needed to add devices later, never leaves this machine

A kit can be moved: nothing in it names the folder it lies in. What NVFlare wants as absolute paths is written when the
kit is started.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cos2p.errors import ConfigError
from cos2p.fleet.admin.fleet_plan import FleetPlan
from cos2p.fleet.nvflare import require_nvflare
from cos2p.fleet.wire import MESSAGE_BYTES

CONTROLLER = "cos2p.fleet.nvflare.controller.FleetController"
EXECUTOR = "cos2p.fleet.nvflare.executor.FleetExecutor"
REJOIN = "cos2p.fleet.nvflare.rejoin.Rejoin"

ADMIN = "admin@fleet.local"
ORGANISATION = "fleet"
BEAT_SECONDS = 2
"""How often NVFlare's client process reports which jobs it runs; a killed job process is noticed after one or two."""

Role = Literal["server", "admin", "device"]


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
        if found != role:
            articled = {"server": "a server", "admin": "an admin", "device": "a device"}
            raise ConfigError(f"{folder} is the kit of {articled[found]}, not of {articled[role]}")
        name = found if found != "device" else _read(path / "startup" / "fed_client.json")["client"]["fqsn"]
        return cls(path, found, name)


def provision(plan: FleetPlan, folder: str | Path) -> list[Kit]:
    """Make the kits of all machines that have none yet. Existing ones are left alone, so devices can be added."""
    require_nvflare()
    root = Path(folder).resolve()
    authority = root / "authority"
    authority.mkdir(parents=True, exist_ok=True)
    authority.chmod(0o700)
    made = _issue(plan, authority)
    kits = []
    names = {"server": plan.server.host, "admin": ADMIN} | {d.name: d.name for d in plan.devices}
    for name, participant in names.items():
        place = root / name
        if not place.exists():
            shutil.copytree(made / participant, place)
            _tune(place, name, plan)
            place.chmod(0o700)
            kits.append(Kit.open(place, "device" if name not in ("server", "admin") else name))  # type: ignore[arg-type]
    shutil.rmtree(made)
    return kits


def _issue(plan: FleetPlan, authority: Path) -> Path:
    """NVFlare's own kits, all of one certificate authority."""
    from nvflare.lighter.constants import CtxKey
    from nvflare.lighter.entity import Project
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    project = Project(plan.name, "", props={"api_version": 3})
    try:
        project.set_server(plan.server.host, ORGANISATION, {"fed_learn_port": plan.server.port})
    except ValueError as error:
        raise ConfigError(f"server.host {plan.server.host!r} is no host name or address: {error}") from None
    for device in plan.devices:
        project.add_client(device.name, ORGANISATION, {})
    project.add_admin(ADMIN, ORGANISATION, {"role": "project_admin"})
    builders = [WorkspaceBuilder(), StaticFileBuilder(config_folder="config"), CertBuilder()]
    context = Provisioner(str(authority), builders).provision(project, logger=_Silent())
    if context.get(CtxKey.BUILD_ERROR):
        raise ConfigError(f"NVFlare could not make the kits: {context.get(CtxKey.BUILD_ERROR)}")
    return Path(context[CtxKey.CURRENT_PROD_DIR])


class _Silent:
    """NVFlare's provisioning prints; ours does not."""

    def info(self, *_: Any) -> None: ...
    def debug(self, *_: Any) -> None: ...
    def warning(self, *_: Any) -> None: ...
    def error(self, *_: Any) -> None: ...


def _tune(place: Path, name: str, plan: FleetPlan) -> None:
    """What differs from NVFlare's defaults, and what is left out."""
    for script in ("start.sh", "stop_fl.sh", "sub_start.sh", "fl_admin.sh", "system_info.ipynb", "readme.txt"):
        (place / "startup" / script).unlink(missing_ok=True)
    (place / "readme.txt").unlink(missing_ok=True)
    if name == "admin":
        return
    for default in ("resources.json", "authorization.json"):
        source = place / "local" / f"{default}.default"
        if source.exists():
            source.rename(place / "local" / default)
    _write(
        place / "local" / "comm_config.json",
        {
            # Nothing that travels is larger than a chunk: more is refused before a buffer is made for it.
            "max_message_size": MESSAGE_BYTES,
            "streaming_max_blob_size": MESSAGE_BYTES,
            "allow_adhoc_conns": False,  # every message passes the server, which checks who sent it
        },
    )
    resources = _read(place / "local" / "resources.json")
    resources["class_allow_list"] = [CONTROLLER] if name == "server" else [EXECUTOR]
    resources["components"] = [
        c for c in resources["components"] if c["id"] not in ("log_receiver", "site_log_streamer")
    ]
    if name == "server":
        resources["components"].append({"id": "rejoin", "path": REJOIN, "args": {}})
        resources["class_allow_list"].append(REJOIN)
        scheduler = next(c for c in resources["components"] if c["id"] == "job_scheduler")
        scheduler["args"]["max_jobs"] = 1
    else:
        resources["allow_log_streaming"] = False
        (place / "device.json").write_text("{}\n", encoding="utf-8")
    _write(place / "local" / "resources.json", resources)


def settle(kit: Kit) -> None:
    """Write into a server's kit the absolute paths NVFlare wants, for the place where the kit lies now."""
    if kit.role != "server":
        return
    path = kit.local / "resources.json"
    resources = _read(path)
    storage = resources["snapshot_persistor"]["args"]["storage"]["args"]
    storage["root_dir"] = str(kit.folder / "nvflare" / "snapshots")
    manager = next(c for c in resources["components"] if c["id"] == "job_manager")
    manager["args"]["uri_root"] = str(kit.folder / "nvflare" / "jobs")
    _write(path, resources)


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
