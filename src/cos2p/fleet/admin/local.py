"""`cos2p fleet local`: server, devices and admin on one machine, as separate processes over the loopback interface."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cos2p.errors import ConfigError
from cos2p.fleet.admin.follow import run_on_fleet
from cos2p.fleet.admin.kits import FleetPlan, provision
from cos2p.fleet.admin.machines import Machine, free_port, wait_for_port
from cos2p.fleet.device.owner import DeviceFile
from cos2p.fleet.kit import Kit, server_address
from cos2p.methods.registry import require_installed
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import fleet_devices
from cos2p.tracking.events import Listener
from cos2p.tracking.files import prepare_folder

START_SECONDS = 120.0
"""How long the processes may take to come up; a machine under load takes its time."""


def with_devices(recipe: Recipe, count: int) -> Recipe:
    """The recipe with a fleet of `count` devices: its groups, fewer or more of each, none of them empty if possible.

    Simulated or real, the result deals the same shards.
    """
    if count < 1:
        raise ConfigError(f"--devices is {count}; a fleet has at least one device")
    groups = recipe.fleet.devices
    total = sum(group.count for group in groups)
    shares = [count * group.count / total for group in groups]
    counts = [max(1, int(share)) for share in shares]
    while sum(counts) > count:
        largest = max(range(len(counts)), key=lambda i: counts[i] - shares[i] + 1e-6 * i)
        counts[largest] -= 1
    while sum(counts) < count:
        neediest = min(range(len(counts)), key=lambda i: counts[i] - shares[i])
        counts[neediest] += 1
    kept = tuple(group.model_copy(update={"count": n}) for group, n in zip(groups, counts, strict=True) if n)
    return recipe.model_copy(update={"fleet": recipe.fleet.model_copy(update={"devices": kept})})


@dataclass
class LocalFleet:
    server: Machine
    devices: dict[str, Machine]
    admin: Kit

    def start(self) -> None:
        self.server.start()
        host, port = server_address(self.server.kit)
        wait_for_port(host, port, START_SECONDS, lambda: self.server.running)
        for device in self.devices.values():
            device.start()

    def kill(self) -> None:
        for machine in (*self.devices.values(), self.server):
            machine.kill()


def make_local_fleet(
    folder: Path, recipe: Recipe, devices: Mapping[str, DeviceFile] | None = None, port: int | None = None
) -> LocalFleet:
    """Kits for the recipe's devices in `folder`, over the loopback interface. `devices` overrides what they are."""
    fleet = {device.name: device for device, _ in fleet_devices(recipe)}
    plan = FleetPlan.model_validate(
        {
            "name": "local",
            "server": {"host": "127.0.0.1", "port": port or free_port()},
            "devices": [{"name": name} for name in fleet],
        }
    )
    provision(plan, folder)
    threads = max(1, (os.cpu_count() or 1) // len(fleet))
    for name, device in fleet.items():
        own = (devices or {}).get(name) or DeviceFile(memory=device.memory, threads=threads)
        replace(own, trust_paths=True).write(folder / name)  # whoever starts the recipe owns these devices
    return open_local_fleet(folder, list(fleet))


def open_local_fleet(folder: Path, names: list[str]) -> LocalFleet:
    return LocalFleet(
        Machine(Kit.open(folder / "server", "server")),
        {name: Machine(Kit.open(folder / name, "device")) for name in names},
        Kit.open(folder / "admin", "admin"),
    )


@contextmanager
def running(fleet: LocalFleet) -> Iterator[LocalFleet]:
    """Start the fleet, and whatever happens leave no process behind."""
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.kill()


def run_local(
    recipe: Recipe,
    out: str | Path,
    *,
    devices: int | None = None,
    slow: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    listener: Listener | None = None,
) -> dict[str, Any]:
    """The recipe on a fleet of separate processes on this machine; returns the figures.

    `slow` makes the devices as unequal as the recipe says: the fastest as this machine, the others slower by the ratio
    of their FLOP/s.
    """
    require_installed(recipe.method["name"])
    recipe = recipe if devices is None else with_devices(recipe, devices)
    folder = prepare_folder(out, overwrite=overwrite, resume=resume)
    kits = folder / "kits"
    names = [device.name for device, _ in fleet_devices(recipe)]
    if resume and (kits / "admin").exists():
        fleet = open_local_fleet(kits, names)
    else:
        fleet = make_local_fleet(kits, recipe, slowed(recipe) if slow else None)
    with running(fleet):
        result = run_on_fleet(recipe, folder, fleet.admin.folder, resume=True, listener=listener, expected=names)
    shutil.rmtree(kits)  # keys of a fleet that is no more
    return result


def slowed(recipe: Recipe) -> dict[str, DeviceFile]:
    """Devices that play those of the recipe: one thread each, slower by the ratio of their FLOP/s to the fastest's."""
    fleet = [device for device, _ in fleet_devices(recipe)]
    fastest = max(device.flops for device in fleet)
    base = DeviceFile(threads=1)
    return {d.name: replace(base, memory=d.memory, slowdown=fastest / d.flops) for d in fleet}
