"""NVFlare's part of a kit: certificates, its settings, and the names of our classes that it may load."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cos2p.errors import ConfigError
from cos2p.fleet.device.owner import OWNER_FILE
from cos2p.fleet.device.owner import TEMPLATE as OWNER_TEMPLATE
from cos2p.fleet.kit import Kit, check_keys, read_json
from cos2p.fleet.wire import MESSAGE_BYTES, RESEND_SECONDS
from cos2p.tracking.files import write_json

if TYPE_CHECKING:
    from cos2p.fleet.admin.kits import FleetPlan

CONTROLLER = "cos2p.fleet.nvflare.controller.FleetController"
EXECUTOR = "cos2p.fleet.nvflare.executor.FleetExecutor"
REJOIN = "cos2p.fleet.nvflare.rejoin.Rejoin"
ACCESS = "cos2p.fleet.nvflare.access.Access"

ADMIN = "admin@fleet.local"
ORGANISATION = "fleet"
ROLE = "project_admin"


def issue(plan: FleetPlan, authority: Path) -> Path:
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
    project.add_admin(ADMIN, ORGANISATION, {"role": ROLE})
    builders = [WorkspaceBuilder(), StaticFileBuilder(config_folder="config"), CertBuilder()]
    context = Provisioner(str(authority), builders).provision(project, logger=_Silent())
    if context.get(CtxKey.BUILD_ERROR):
        raise ConfigError(f"NVFlare could not make the kits: {context.get(CtxKey.BUILD_ERROR)}")
    return Path(context[CtxKey.CURRENT_PROD_DIR])


class _Silent:
    def info(self, *_: Any) -> None: ...
    def debug(self, *_: Any) -> None: ...
    def warning(self, *_: Any) -> None: ...
    def error(self, *_: Any) -> None: ...


def tidy(place: Path) -> None:
    """Delete the scripts of NVFlare's kit: they start it without our supervision."""
    for script in ("start.sh", "stop_fl.sh", "sub_start.sh", "fl_admin.sh", "system_info.ipynb", "readme.txt"):
        (place / "startup" / script).unlink(missing_ok=True)
    (place / "readme.txt").unlink(missing_ok=True)


def tune(place: Path, name: str, plan: FleetPlan) -> None:
    """Write the settings that differ from NVFlare's defaults, and delete the rest."""
    tidy(place)
    if name == "admin":
        return
    for default in ("resources.json", "authorization.json"):
        source = place / "local" / f"{default}.default"
        if source.exists():
            source.rename(place / "local" / default)
    _write(place / "local" / "authorization.json", _policy(name))
    _write(
        place / "local" / "comm_config.json",
        {
            # Nothing that travels is larger than a chunk: more is refused before a buffer is made for it.
            "max_message_size": MESSAGE_BYTES,
            "streaming_max_blob_size": MESSAGE_BYTES,
            # Messages not confirmed by then are sent again; after the 5 s of NVFlare a slow link carries all twice.
            "streaming_retry_wait": RESEND_SECONDS,
            "streaming_retry_timeout": 4 * RESEND_SECONDS,
            "allow_adhoc_conns": False,  # every message passes the server, which checks who sent it
        },
    )
    resources = read_json(place / "local" / "resources.json")
    resources["class_allow_list"] = [CONTROLLER] if name == "server" else [EXECUTOR]
    resources["components"] = [
        c for c in resources["components"] if c["id"] not in ("log_receiver", "site_log_streamer")
    ]
    if name == "server":
        for name_of, path in (("access", ACCESS), ("rejoin", REJOIN)):
            resources["components"].append({"id": name_of, "path": path, "args": {}})
            resources["class_allow_list"].append(path)
        scheduler = next(c for c in resources["components"] if c["id"] == "job_scheduler")
        scheduler["args"]["max_jobs"] = 1
    else:
        resources["allow_log_streaming"] = False
        (place / "device.json").write_text("{}\n", encoding="utf-8")
        (place / OWNER_FILE).write_text(OWNER_TEMPLATE, encoding="utf-8")
    _write(place / "local" / "resources.json", resources)


def _policy(name: str) -> dict[str, Any]:
    """An admin's rights on this machine. Nowhere: bring code (`byoc`: NVFlare would run a job's `custom` folder
    and check none of its classes), or read files by shell commands. On a device: nothing but give it a run and end
    that."""
    rights = dict.fromkeys(
        ("clone_job", "download_job", "view", "operate", "app_command"), "any" if name == "server" else "none"
    ) | {
        "submit_job": "any",
        "manage_job": "any",
    }
    refused = dict.fromkeys(("byoc", "shell_commands", "server-predeployed-flwr"), "none")
    return {"format_version": "1.0", "permissions": {ROLE: rights | refused}}


def settle(kit: Kit) -> None:
    """Before a kit's process is started: is it of this version? A server's gets the absolute paths NVFlare wants, for
    the place where the kit lies now."""
    path = kit.local / "resources.json"
    resources = read_json(path)
    _check_version(kit, resources)
    check_keys(kit)
    if kit.role != "server":
        # NVFlare sends the server what it does not know itself: so it notices two machines with one kit.
        _write(path, resources | {"machine": _machine(kit)})
        return
    storage = resources["snapshot_persistor"]["args"]["storage"]["args"]
    storage["root_dir"] = str(kit.folder / "nvflare" / "snapshots")
    manager = next(c for c in resources["components"] if c["id"] == "job_manager")
    manager["args"]["uri_root"] = str(kit.folder / "nvflare" / "jobs")
    _write(path, resources)


def _machine(kit: Kit) -> str:
    """A name of this machine and place, for this fleet alone: a hash that says nothing but whether two are the same."""
    known = Path("/etc/machine-id")
    own = known.read_text().strip() if known.exists() else str(uuid.getnode())
    root = (kit.startup / "rootCA.pem").read_text()
    return hashlib.sha256(f"{own} {kit.folder} {root}".encode()).hexdigest()[:16]


def forget_keys(authority: Path, participants: Iterable[str]) -> None:
    """Have the authority issue new keys to these next time; it gives out the same ones otherwise."""
    for path in authority.rglob("cert.json"):
        known = read_json(path)
        for name in participants:
            known.pop(name, None)
        _write(path, known)


def _check_version(kit: Kit, resources: dict[str, Any]) -> None:
    """A kit names our classes; of an older version, they are no more, and NVFlare would end with a traceback."""
    named = [*resources.get("class_allow_list", ()), *(c.get("path", "") for c in resources.get("components", ()))]
    unknown = [
        name for name in named if name.startswith("cos2p.") and name not in (CONTROLLER, EXECUTOR, REJOIN, ACCESS)
    ]
    policy = kit.local / "authorization.json"
    if not unknown and policy.exists() and read_json(policy)["permissions"].get(ROLE) == "any":
        unknown = ["an admin who may do anything"]
    if unknown:
        raise ConfigError(
            f"{kit.folder}: this kit was made by an older version (it names {unknown[0]}); provision again, into a new "
            "folder: cos2p fleet provision fleet.toml -o kits/"
        )


def _write(path: Path, values: dict[str, Any]) -> None:
    write_json(path, values, indent=2)
