"""Two machines with one kit, a revoked kit, a renewed one: with real connections. About two minutes on idle cores."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cos2p.fleet.admin.kits import FleetPlan, provision
from cos2p.fleet.admin.machines import Machine
from cos2p.fleet.kit import Kit, server_address
from tests.fleet.lab import Lab, running_lab, slow, small_recipe

pytestmark = [pytest.mark.fleet, pytest.mark.slow]


def test_kits_are_for_one_machine_until_they_are_revoked(tmp_path: Path) -> None:
    recipe = small_recipe(devices=2, rounds=100_000)
    copy = tmp_path / "stolen"
    with running_lab(tmp_path, recipe, {"dev-1": slow(1.0), "dev-2": slow(1.0)}) as lab:
        shutil.copytree(lab.machine("dev-1").kit.folder, copy)
        twin = Machine(Kit.open(copy, "device"))
        try:
            lab.start_run()
            lab.wait_for_event("merged", "dev-1")
            a_twin_is_named_and_does_not_push_the_first_out(lab, twin)
            a_revoked_kit_is_out_at_once(lab)
            a_renewed_kit_is_in_and_its_copy_is_not(lab, twin)
        finally:
            twin.kill()


def refused(lab: Lab, words: str) -> dict[str, object]:
    found = lab.wait_for(lambda: [e for e in lab.events("refused", "dev-1") if words in e["reason"]])
    return dict(found[0])


def a_twin_is_named_and_does_not_push_the_first_out(lab: Lab, twin: Machine) -> None:
    twin.start()
    lab.wait_for(lambda: "another machine is here" in twin.refusal())
    refused(lab, "another machine is here with the kit of dev-1")
    twin.kill()
    lab.wait_for_event("merged", "dev-1", len(lab.events("merged", "dev-1")) + 2)


def a_revoked_kit_is_out_at_once(lab: Lab) -> None:
    lab.command("fleet", "revoke", str(lab.fleet.admin.folder), "dev-1")
    refused(lab, "its kit was revoked")
    lab.wait_for_event("left", "dev-1")
    merged = len(lab.events("merged", "dev-1"))
    lab.machine("dev-1").start()
    lab.wait_for(lambda: "was revoked" in lab.machine("dev-1").refusal())
    lab.wait_for_event("merged", "dev-2", len(lab.events("merged", "dev-2")) + 2)  # the others go on
    assert len(lab.events("merged", "dev-1")) == merged


def a_renewed_kit_is_in_and_its_copy_is_not(lab: Lab, twin: Machine) -> None:
    machine = lab.machine("dev-1")
    machine.kill()
    host, port = server_address(lab.fleet.server.kit)
    devices = [{"name": name} for name in lab.fleet.devices]
    plan = FleetPlan.model_validate({"name": "local", "server": {"host": host, "port": port}, "devices": devices})
    provision(plan, lab.folder / "kits", renew=("dev-1",))
    machine.kit.log.unlink()
    machine.start()
    lab.wait_for_event("merged", "dev-1", len(lab.events("merged", "dev-1")) + 1)
    twin.kit.log.unlink()
    twin.start()
    lab.wait_for(lambda: "was revoked" in twin.refusal() or "a newer kit" in twin.refusal())
    lab.wait_for_event("merged", "dev-1", len(lab.events("merged", "dev-1")) + 2)
