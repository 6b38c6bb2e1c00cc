"""Connections that lead nowhere, a device that freezes in the middle, keys of another fleet: with real processes."""

from __future__ import annotations

import signal
import socket
import ssl
from contextlib import ExitStack
from pathlib import Path

import pytest

from cos2p.fleet.admin.kits import FleetPlan, provision
from cos2p.fleet.kit import server_address
from tests.fleet.lab import Lab, running_lab, slow, small_recipe
from tests.fleet.test_faults_quick import answers

pytestmark = [pytest.mark.fleet, pytest.mark.slow]

IDLE = 200


def test_a_run_goes_on_under_siege(tmp_path: Path) -> None:
    recipe = small_recipe(devices=3, rounds=100_000, method__name="cos2p-sync")
    with running_lab(tmp_path, recipe, {f"dev-{n}": slow(0.5) for n in (1, 2, 3)}) as lab, ExitStack() as held:
        connections_that_say_nothing_stop_nobody(lab, held)
        keys_of_another_fleet_open_nothing(lab, tmp_path / "foreign")
        a_device_that_freezes_is_not_waited_for_and_comes_back(lab)
        lab.end_run()


def connections_that_say_nothing_stop_nobody(lab: Lab, held: ExitStack) -> None:
    """Half of them say nothing, half begin with TLS and go no further."""
    for number in range(IDLE):
        line = held.enter_context(socket.create_connection(server_address(lab.fleet.server.kit), timeout=30))
        if number % 2:
            line.sendall(b"\x16\x03\x01\x02\x00\x01")
    lab.start_run()
    for name in ("dev-1", "dev-2", "dev-3"):
        lab.wait_for_event("merged", name)


def keys_of_another_fleet_open_nothing(lab: Lab, folder: Path) -> None:
    """The same names, another authority."""
    host, port = server_address(lab.fleet.server.kit)
    devices = [{"name": name} for name in lab.fleet.devices]
    provision(
        FleetPlan.model_validate({"name": "local", "server": {"host": host, "port": port}, "devices": devices}), folder
    )
    for kit in ("admin", "dev-1"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(folder / kit / "startup" / "client.crt", folder / kit / "startup" / "client.key")
        assert not answers(context, host, port)


def a_device_that_freezes_is_not_waited_for_and_comes_back(lab: Lab) -> None:
    """Its connections stay open, and nothing moves on them."""
    frozen = [process for process in lab.machine("dev-2").processes() if process.is_running()]
    for process in frozen:
        process.send_signal(signal.SIGSTOP)
    lab.wait_for_event("left", "dev-2")
    merged = len(lab.events("merged", "dev-1"))
    lab.wait_for_event("merged", "dev-1", merged + 2)
    own = len(lab.events("merged", "dev-2"))
    for process in frozen:
        process.send_signal(signal.SIGCONT)
    lab.wait_for_event("merged", "dev-2", own + 1)
