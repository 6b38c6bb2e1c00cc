"""Namespaces: one for each device, one for the router between, one for the server, which devices reach and which
reaches no device.

    device ns        router ns                        server ns
    tun0 10.8.i.2 ── (links.Forwarder: NAT) ── tun-i
                                               10.7.0.1 veth ── veth 10.7.0.2 (server, admin)

Everything has names of the test's own and is removed afterwards; nothing leaves these namespaces.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

from cos2p.fleet.admin.kits import FleetPlan, provision
from cos2p.fleet.admin.local import open_local_fleet
from cos2p.fleet.admin.machines import Machine, wait_for_port
from cos2p.fleet.device.owner import DeviceFile
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import fleet_devices
from tests.fleet.lab import Lab
from tests.network.links import Conditions, Forwarder, Link, open_tun

SERVER = IPv4Address("10.7.0.2")
PORT = 8102
CLONE_NEWNET = 0x40000000
QUEUE_SECONDS = 1.0
"""How much a link's queue holds: home routers and mobile networks hold about a second."""


def reason_to_skip() -> str:
    """Empty: namespaces and TUN devices can be made here."""
    if os.geteuid() != 0:
        return "network namespaces need root (or: unshare --user --map-root-user --net --mount)"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    name = f"cos2p-{os.getpid()}-try"
    try:
        _ip("netns", "add", name)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no network namespace can be made here: {error}"
    try:
        with inside(name):
            os.close(open_tun("tun0"))
    except OSError as error:
        return f"no TUN device can be made here: {error}"
    finally:
        _ip("netns", "del", name)
    return ""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """This thread, and what it starts, is in the namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as before, Path(f"/run/netns/{namespace}").open() as there:
        if libc.setns(there.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
        try:
            yield
        finally:
            libc.setns(before.fileno(), CLONE_NEWNET)


class Network:
    """Made of nothing but namespaces: any program can be run in `space(NAME)`."""

    def __init__(self, links: Mapping[str, Conditions], seed: int = 0) -> None:
        self._prefix = f"cos2p-{os.getpid()}-"
        self._names = ["server", "router", *links]
        self._forwarder = Forwarder(seed)
        self.links: dict[str, Link] = {}
        try:
            self._make(links)
        except BaseException:
            self.close()
            raise

    def space(self, name: str) -> str:
        return self._prefix + name

    def _make(self, links: Mapping[str, Conditions]) -> None:
        for name in self._names:
            _ip("netns", "add", self.space(name))
            _ip("-n", self.space(name), "link", "set", "lo", "up")
        server, router = self.space("server"), self.space("router")
        _ip("-n", router, "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", server)
        for space, address in ((router, "10.7.0.1/24"), (server, f"{SERVER}/24")):
            _ip("-n", space, "addr", "add", address, "dev", "veth0")
            _ip("-n", space, "link", "set", "veth0", "up")
        _ip("-n", server, "route", "add", "default", "via", "10.7.0.1")
        with inside(router):
            subprocess.run(["sysctl", "-qw", "net.ipv4.ip_forward=1"], check=True)
        for number, (name, conditions) in enumerate(links.items(), 1):
            self._connect(number, name, conditions)
        self._forwarder.start()

    def _connect(self, number: int, name: str, conditions: Conditions) -> None:
        space, router, private = self.space(name), self.space("router"), IPv4Address(f"10.8.{number}.2")
        with inside(space):
            near = open_tun("tun0")
        with inside(router):
            far = open_tun(f"tun-{number}")
        _ip("-n", space, "addr", "add", f"{private}/24", "dev", "tun0")
        _ip("-n", space, "link", "set", "tun0", "up")
        _ip("-n", space, "route", "add", "default", "dev", "tun0")
        _ip("-n", router, "link", "set", f"tun-{number}", "up")
        # Two public addresses each, so that one can change.
        _ip("-n", router, "route", "add", f"10.9.{number}.0/24", "dev", f"tun-{number}")
        self._shape(space, "tun0", conditions.up)
        self._shape(router, f"tun-{number}", conditions.down)
        link = Link(name, conditions, near, far, private, IPv4Address(f"10.9.{number}.1"))
        self._forwarder.links.append(link)
        self.links[name] = link

    def _shape(self, space: str, device: str, rate: float) -> None:
        burst = max(3200, int(rate / 8 / 100))
        limit = burst + max(6000, int(QUEUE_SECONDS * rate / 8))
        words = ["rate", f"{int(rate)}bit", "burst", str(burst), "limit", str(limit)]
        subprocess.run(
            ["tc", "-n", space, "qdisc", "replace", "dev", device, "root", "tbf", *words],
            check=True,
            capture_output=True,
            timeout=20,
        )

    def close(self) -> None:
        if self._forwarder._thread.is_alive():
            self._forwarder.close()
        for name in self._names:
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", self.space(name))


class PlacedMachine(Machine):
    """A kit's processes in a namespace."""

    space = ""

    def start(self) -> None:
        with inside(self.space):
            super().start()


class NetworkLab(Lab):
    """A real fleet whose machines are in namespaces of their own; the user is at the server."""

    def __init__(self, folder: Path, recipe: Recipe, network: Network) -> None:
        self.folder, self.recipe, self.network = folder, recipe, network
        names = [device.name for device, _ in fleet_devices(recipe)]
        plan = {"name": "lab", "server": {"host": str(SERVER), "port": PORT}, "devices": [{"name": n} for n in names]}
        provision(FleetPlan.model_validate(plan), folder / "kits")
        for name in names:
            replace(DeviceFile(threads=1), trust_paths=True).write(folder / "kits" / name)
        self.fleet = open_local_fleet(folder / "kits", names)
        self.fleet.server = self._placed("server", self.fleet.server)
        self.fleet.devices = {name: self._placed(name, machine) for name, machine in self.fleet.devices.items()}
        self.out = folder / "out"
        self._run = None

    def _placed(self, name: str, machine: Machine) -> Machine:
        placed = PlacedMachine(machine.kit)
        placed.space = self.network.space(name)
        return placed

    def start_run(self, *options: str) -> None:
        with inside(self.network.space("server")):
            super().start_run(*options)

    def command(self, *arguments: str) -> str:
        with inside(self.network.space("server")):
            return super().command(*arguments)

    def start(self) -> None:
        self.fleet.server.start()
        with inside(self.network.space("server")):
            wait_for_port(str(SERVER), PORT, 120, lambda: self.fleet.server.running)
        for device in self.fleet.devices.values():
            device.start()


@contextmanager
def network_lab(folder: Path, recipe: Recipe, links: Mapping[str, Conditions] | Conditions) -> Iterator[NetworkLab]:
    """A fleet with its links up and all its machines started."""
    if isinstance(links, Conditions):
        links = {device.name: replace(links) for device, _ in fleet_devices(recipe)}
    network = Network(links)
    try:
        lab = NetworkLab(folder, recipe, network)
        try:
            lab.start()
            yield lab
        finally:
            lab.close()
    finally:
        network.close()
