"""A real fleet in real processes, and the faults a client can have, with kill -9. About 80 s on two idle cores."""

from __future__ import annotations

import json
import socket
import ssl
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch

from cos2p.fleet.admin.kits import FleetPlan, provision
from cos2p.fleet.admin.status import status_tables
from cos2p.fleet.kit import server_address
from cos2p.fleet.notices import FORBIDDEN
from tests.fleet.lab import PATIENCE, Lab, running_lab, slow, small_recipe

pytestmark = pytest.mark.fleet


def test_a_run_survives_what_happens_to_its_clients(tmp_path: Path) -> None:
    recipe = small_recipe(devices=2, rounds=100_000)
    with running_lab(tmp_path, recipe, {"dev-1": slow(1.0), "dev-2": slow(1.0)}, absent=("dev-1", "dev-2")) as lab:
        lab.start_hostile("dev-2")
        lab.start_run()
        strangers_are_not_let_in(lab, tmp_path)
        bad_intentions_come_to_nothing(lab, "dev-2")
        a_client_comes_late(lab, "dev-1")
        the_training_process_is_killed(lab, "dev-1")
        the_job_process_is_killed(lab, "dev-2")
        the_whole_client_is_killed_and_started_again(lab, "dev-1")
        lab.wait_for_event("merged", "dev-2", count=len(lab.events("merged", "dev-2")) + 1)
        the_status_tells_it(lab)
        who_commands_another_is_excluded(lab, "dev-2", "dev-1")
        result = lab.end_run()
        the_folder_is_that_of_a_simulation(lab, result)
        the_wire_carries_little_else(lab)


def strangers_are_not_let_in(lab: Lab, folder: Path) -> None:
    """No certificate, and one of another fleet's authority."""
    host, port = server_address(lab.fleet.server.kit)
    plan = FleetPlan.model_validate({"server": {"port": port}, "devices": [{"name": "dev-1"}]})
    other = next(kit for kit in provision(plan, folder / "other") if kit.name == "dev-1")
    for certificate in (None, other, lab.machine("dev-1").kit):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if certificate is not None:
            context.load_cert_chain(certificate.startup / "client.crt", certificate.startup / "client.key")
        assert answers(context, host, port) == (certificate is lab.machine("dev-1").kit)


def answers(context: ssl.SSLContext, host: str, port: int) -> bool:
    """Whether the server speaks with us at all."""
    try:
        with socket.create_connection((host, port), timeout=30) as raw, context.wrap_socket(raw) as line:
            line.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            return bool(line.recv(1))
    except OSError:  # ssl.SSLError is one
        return False


def bad_intentions_come_to_nothing(lab: Lab, name: str) -> None:
    """A device with a valid certificate tries everything with tasks and updates; nothing works, all is written down.

    It is alone, so any change of the model would be its work.
    """
    reported = json.loads(lab.wait_for(lambda: read(lab.machine(name).kit.folder / "tricks.json")))
    for trick, reason in {
        "never given": "a task that it does not have",
        "another's task": "a task that it does not have",
        "another's payload": "is not a task of dev-2",
        "oversized": "bytes is announced; at most",
        "more than announced": "more than the 10 bytes announced",
        "out of order": "byte 5 came where byte 0",
        "no such topic": "LinkDown",
        "nonsense": "Refusal",
        "a huge message": "LinkDown",
    }.items():
        assert reason in reported[trick], (trick, reported)
    replay = json.loads(lab.wait_for(lambda: read(lab.machine(name).kit.folder / "replay.json")))
    assert "a task that it does not have" in replay["replayed"]
    closed = lab.wait_for(lambda: [e for e in lab.events("refused", name) if "answered before" in e["reason"]])
    assert len(closed) == 1  # the old update under the new task's name
    lab.wait_for_event("merged", name, 2)  # once it is honest, it is as welcome as any
    events = lab.events()
    truncated = [e for e in events if e["kind"] == "refused" and "truncated" in e["reason"]]
    assert len(truncated) == 1
    before = events[: events.index(truncated[0])]
    assert not {"merged", "aggregated"} & {event["kind"] for event in before}
    assert len([event for event in before if event["kind"] == "refused"]) >= 6
    assert not {reported["task"], replay["task"]} & {event["task"] for event in events if event["kind"] == "merged"}


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def a_client_comes_late(lab: Lab, name: str) -> None:
    assert not lab.events("joined", name)
    lab.machine(name).start()
    lab.wait_for_event("merged", name)


def the_training_process_is_killed(lab: Lab, name: str) -> None:
    """Told with its signal; a fresh process does the next task."""
    before = len(lab.events("failed", name))
    for _ in range(10):  # a process killed between two tasks is replaced without a word
        process, merged = lab.process(name, "training"), len(lab.events("merged", name))
        process.suspend()  # so that it cannot be done with its task
        time.sleep(1.0)
        process.kill()
        lab.wait_for(lambda m=merged: len(lab.events("failed", name)) > before or len(lab.events("merged", name)) > m)
        if len(lab.events("failed", name)) > before:
            break
    assert "signal 9" in lab.events("failed", name)[before]["reason"]
    lab.wait_for_event("merged", name, len(lab.events("merged", name)) + 1)


def the_job_process_is_killed(lab: Lab, name: str) -> None:
    """The job goes on, and the client is given it again."""
    joined, job = len(lab.events("joined", name)), lab.process("server", "server job").pid
    lab.process(name, "client job").kill()
    lab.wait_for_event("joined", name, joined + 1)
    lab.wait_for_event("merged", name, len(lab.events("merged", name)) + 1)
    assert lab.process("server", "server job").pid == job


def the_whole_client_is_killed_and_started_again(lab: Lab, name: str) -> None:
    """The task it had is given up, a new one is given; the other client does not wait."""
    joined = len(lab.events("joined", name))
    lab.machine(name).kill()
    lab.wait_for_event("left", name)
    others = len(lab.events("merged", "dev-2"))
    lab.wait_for_event("merged", "dev-2", others + 1)
    began = time.monotonic()
    lab.machine(name).start()
    lab.wait_for_event("joined", name, joined + 1)
    tasks = [event["task"] for event in lab.events("dispatched", name)]
    assert len(set(tasks)) == len(tasks)  # never the same task twice
    lab.wait_for_event("merged", name, len(lab.events("merged", name)) + 1)
    assert time.monotonic() - began < 0.4 * PATIENCE


def who_commands_another_is_excluded(lab: Lab, name: str, victim: str) -> None:
    data = lab.machine(victim).kit.folder / "data"
    data.mkdir()
    (lab.machine(name).kit.folder / "command").touch()
    excluded = lab.wait_for_event("excluded", name)
    assert excluded["reason"].startswith(f"{FORBIDDEN}admin:admin to {victim} ")
    lab.wait_for_event("merged", victim, len(lab.events("merged", victim)) + 1)
    assert data.is_dir()
    assert all(event["t"] < excluded["t"] for event in lab.events("dispatched", name))


def the_folder_is_that_of_a_simulation(lab: Lab, result: dict[str, object]) -> None:
    assert result["finished"] == "the user ended it"
    assert lab.server_folder is not None
    for name in ("events.jsonl", "result.json", "weights.safetensors"):
        assert (lab.out / name).read_bytes() == (lab.server_folder / name).read_bytes(), name
    weights = safetensors.torch.load_file(lab.out / "weights.safetensors")
    assert all(bool(torch.isfinite(tensor).all()) for tensor in weights.values())
    assert (lab.out / "model" / "config.json").is_file()
    kinds = {event["kind"] for event in lab.events()}
    assert {"started", "joined", "dispatched", "arrived", "merged", "aggregated", "finished"} <= kinds


def the_status_tells_it(lab: Lab) -> None:
    found = json.loads(lab.command("fleet", "status", str(lab.fleet.admin.folder), "--json"))
    assert found["connected"] == ["dev-1", "dev-2"]
    assert found["state"] == "running"
    assert found["clients"]["dev-1"]["updates"] >= 2
    assert len(status_tables(found)) == 2


def the_wire_carries_little_else(lab: Lab) -> None:
    """Per client, from the log. Payloads of a quarter of a megabyte: larger ones have a smaller share of heads."""
    reported = {event["client"]: event for event in lab.events("traffic")}
    assert reported.keys() == {"dev-1", "dev-2"}
    for own in reported.values():
        assert own["tensors_down"] > 0
        assert own["wire_down"] < 1.15 * own["tensors_down"]
