"""A device with a valid kit commands the others and the server: nothing happens to them, and it is excluded.

Each takes about forty seconds on two idle cores; `test_faults_quick` has one command of them all.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from cos2p.fleet.notices import FORBIDDEN
from cos2p.fleet.nvflare.channels import DEVICE_TO_JOB, DEVICE_TO_SERVER
from tests.fleet.lab import Lab, loading, running_lab, slow, small_recipe

pytestmark = [pytest.mark.fleet, pytest.mark.slow]

ATTACKER, VICTIM = "dev-2", "dev-1"
ANY = "nvflare.private.fed.app"
AT_SERVER = "nvflare.private.fed.app.server"


def test_a_device_commands_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with attacked(tmp_path, monkeypatch, {}) as (lab, sent):
        everything_was_tried(sent)
        lab.wait_for(lambda: not missing(sent, log_of(lab, "server")), 60)
        assert "(it connects as _admin_" in log_of(lab, "server")
        it_is_named_and_excluded(lab)
        nobody_is_harmed(lab)
        assert lab.end_run()["finished"] == "the user ended it"


def test_a_device_takes_commands_from_its_server_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the server is NVFlare's own and passes on what it gets. Of what comes in its name, forged or not, a device
    does no more than a run needs, and deletes nothing but a job's folder."""
    monkeypatch.setenv("COS2P_TEST_TARGETS", VICTIM)
    with attacked(tmp_path, monkeypatch, {AT_SERVER: "tests.fleet.unguarded"}) as (lab, sent):
        own = [entry for entry in sent if entry[0] != "admin" or entry[1] != "admin"]
        lab.wait_for(lambda: not missing(own, log_of(lab, VICTIM)), 60)
        assert named(lab, VICTIM) == {ATTACKER}
        nobody_is_harmed(lab)


@contextmanager
def attacked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, modules: Mapping[str, str]
) -> Iterator[tuple[Lab, list[tuple[str, str, str]]]]:
    """A fleet of two whose second device has done its worst, and what it sent."""
    (folder / "registries").mkdir()
    monkeypatch.setenv("COS2P_TEST_REGISTRIES", str(folder / "registries"))
    recipe = small_recipe(2, rounds=100_000)
    with (
        loading(folder / "custom", {ANY: "tests.fleet.registries", **modules}),
        running_lab(folder, recipe, {VICTIM: slow(0.3)}, absent=(ATTACKER,)) as lab,
    ):
        treasure(lab).parent.mkdir()
        treasure(lab).write_text("of the device alone")
        lab.start_hostile(ATTACKER, "tests.fleet.commander")
        lab.start_run()
        reported = lab.machine(ATTACKER).kit.folder / "commands.json"
        lab.wait_for(reported.exists)
        values: dict[str, Any] = json.loads(reported.read_text())
        assert (values["connected"], values["read"]) == (False, "")
        yield lab, [tuple(entry) for entry in values["sent"]]


def treasure(lab: Lab) -> Path:
    return lab.machine(VICTIM).kit.folder / "data" / "patients.csv"


def log_of(lab: Lab, name: str) -> str:
    """Of all processes of a machine."""
    return "\n".join(path.read_text(errors="replace") for path in lab.machine(name).kit.folder.rglob("log.txt"))


def named(lab: Lab, name: str) -> set[str]:
    """Whom a machine's terminal names."""
    lines = (lab.machine(name).kit.folder / "notices.jsonl").read_text().splitlines()
    return {entry["client"] for entry in map(json.loads, lines) if entry["reason"].startswith(FORBIDDEN)}


def is_allowed(channel: str, topic: str, target: str) -> bool:
    listed = DEVICE_TO_SERVER if target == "server" else DEVICE_TO_JOB if target.startswith("server.") else frozenset()
    return bool({(channel, topic), (channel, "*")} & listed)


def missing(sent: list[tuple[str, str, str]], log: str) -> list[str]:
    """What was sent, is on no list, and was not refused by name as often as it was sent."""
    lines = Counter(f"refused {ATTACKER}: {FORBIDDEN}{c}:{t} to {d} (" for c, t, d in sent if not is_allowed(c, t, d))
    return [line for line, times in lines.items() if log.count(line) < times]


def everything_was_tried(sent: list[tuple[str, str, str]]) -> None:
    """What the processes' own registries say is no empty list."""
    by_target: dict[str, set[tuple[str, str]]] = {}
    for channel, topic, target in sent:
        part = target.partition(".")[0] + (".JOB" if "." in target else "")
        by_target.setdefault(part, set()).add((channel, topic))
    assert set(by_target) == {"server", "server.JOB", VICTIM, f"{VICTIM}.JOB"}
    assert ("server_parent_listener", "get_clients") in by_target["server"]
    assert ("server_command", "abort") in by_target["server.JOB"]
    assert {("admin", "train.deploy"), ("admin", "train.delete_run")} <= by_target[VICTIM]
    assert ("client_command", "abort") in by_target[f"{VICTIM}.JOB"]
    for pairs in by_target.values():
        assert ("_net_manager", "stop_cell") in pairs
        assert len(pairs) > 30


def it_is_named_and_excluded(lab: Lab) -> None:
    excluded = lab.wait_for_event("excluded", ATTACKER)
    assert excluded["reason"].startswith(FORBIDDEN)
    assert {event["client"] for event in lab.events("refused")} == {ATTACKER}
    assert all(event["t"] < excluded["t"] for event in lab.events("dispatched", ATTACKER))
    assert named(lab, "server") == {ATTACKER}


def nobody_is_harmed(lab: Lab) -> None:
    merged = len(lab.events("merged", VICTIM))
    lab.wait_for_event("merged", VICTIM, merged + 3)
    assert treasure(lab).read_text() == "of the device alone"
    assert (lab.machine(VICTIM).kit.startup / "client.key").is_file()
    assert lab.machine(VICTIM).running
    assert not (lab.machine(VICTIM).kit.folder / "shutdown.fl").exists()
    assert len(lab.events("joined", VICTIM)) == 1  # again, if its job or the server's had ended
    assert not lab.events("left", VICTIM)
