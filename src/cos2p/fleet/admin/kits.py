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
from collections.abc import Sequence
from pathlib import Path

from cos2p.checksums import note_folder
from cos2p.errors import ConfigError
from cos2p.fleet.admin.fleet_plan import FleetPlan
from cos2p.fleet.kit import Kit
from cos2p.fleet.nvflare import require_nvflare
from cos2p.fleet.nvflare.provisioning import ADMIN, forget_keys, issue, tidy, tune


def keep_private(folder: Path) -> None:
    """Readable by the owner alone: whoever reads a key acts in its name."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o700 if path.is_dir() else 0o600)


def provision(plan: FleetPlan, folder: str | Path, renew: Sequence[str] = ()) -> list[Kit]:
    """Make the kits of all machines that have none yet. Existing ones are left alone, so devices can be added; those
    in `renew` get new keys, and what the owner has written into the old kit."""
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
    return kits
