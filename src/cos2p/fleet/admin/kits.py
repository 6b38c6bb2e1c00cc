"""Kits: one folder per machine with its keys, made once by `cos2p fleet provision` and carried to the machine.

    kits/server/    certificate and key, our component for clients that come back, later the runs' checkpoints
    kits/admin/     who may start runs
    kits/pi-1/      a device
    kits/authority/ the fleet's certificate authority: needed to add devices later, never leaves this machine

A kit can be moved: nothing in it names the folder it lies in. What NVFlare wants as absolute paths is written when the
kit is started.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from cos2p.fleet.admin.fleet_plan import FleetPlan
from cos2p.fleet.kit import Kit
from cos2p.fleet.nvflare import require_nvflare
from cos2p.fleet.nvflare.provisioning import ADMIN, issue, tune


def keep_private(folder: Path) -> None:
    """Readable by the owner alone: whoever reads a key acts in its name."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o700 if path.is_dir() else 0o600)


def provision(plan: FleetPlan, folder: str | Path) -> list[Kit]:
    """Make the kits of all machines that have none yet. Existing ones are left alone, so devices can be added."""
    require_nvflare()
    root = Path(folder).resolve()
    authority = root / "authority"
    authority.mkdir(parents=True, exist_ok=True)
    made = issue(plan, authority)
    keep_private(authority)
    kits = []
    names = {"server": plan.server.host, "admin": ADMIN} | {d.name: d.name for d in plan.devices}
    for name, participant in names.items():
        place = root / name
        if not place.exists():
            shutil.copytree(made / participant, place)
            tune(place, name, plan)
            keep_private(place)
            kits.append(Kit.open(place, "device" if name not in ("server", "admin") else name))  # type: ignore[arg-type]
    shutil.rmtree(made)
    return kits
