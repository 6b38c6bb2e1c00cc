"""A real fleet in real processes, and the faults a client can have, with kill -9. About 40 s on two idle cores."""

from __future__ import annotations

import json
import socket
import ssl
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch

from cos2p.runtime.nvflare.kits import provision
from cos2p.runtime.nvflare.plan import FleetPlan
from cos2p.runtime.nvflare.processes import server_address
from tests.nvflare.lab import Lab, running_lab, slow, small_recipe

pytestmark = pytest.mark.fleet


def test_a_run_survives_what_happens_to_its_clients(tmp_path: Path) -> None:
    recipe = small_recipe(devices=2, rounds=100_000)
    with running_lab(tmp_path, recipe, {"dev-1": slow(1.0), "dev-2": slow(1.0)}, absent=("dev-2",)) as lab:
        lab.start_hostile("dev-2")
        lab.start_run()
        strangers_are_not_let_in(lab, tmp_path)
        lab.wait_for_event("merged", "dev-1")
        bad_intentions_come_to_nothing(lab, "dev-2")
        the_training_process_is_killed(lab, "dev-1")
        the_job_process_is_killed(lab, "dev-2")
        the_whole_client_is_killed_and_started_again(lab, "dev-1")
        lab.wait_for_event("merged", "dev-2", count=len(lab.events("merged", "dev-2")) + 1)
        result = lab.end_run()
        the_folder_is_that_of_a_simulation(lab, result)


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
    """A device with a valid certificate tries everything; nothing works, all of it is written down."""
    told = json.loads(lab.wait_for(lambda: read(lab.machine(name).kit.folder / "tricks.json")))
    for trick, reason in {
        "never given": "a task that it does not have",
        "another's task": "a task that it does not have",
        "another's payload": "is not a task of dev-2",
        "oversized": "bytes is announced; at most",
        "more than announced": "more than the 10 bytes announced",
        "out of order": "byte 5 came where byte 0",
        "no such topic": "Refusal",
        "nonsense": "Refusal",
        "a huge message": "LinkDown",
        "forged name": "LinkDown",
    }.items():
        assert reason in told[trick], told
    truncated = lab.wait_for(lambda: [e for e in lab.events("refused", name) if "truncated" in e["reason"]])
    assert truncated
    assert len(lab.events("refused", name)) >= 7
    assert not lab.events("refused", "dev-1")  # whose name was forged
    merged = lab.wait_for_event("merged", name)  # once it is honest, it is as welcome as any
    assert merged["size"] < 1


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def the_training_process_is_killed(lab: Lab, name: str) -> None:
    """Told with its signal; a fresh process does the next task."""
    before = len(lab.events("failed", name))
    lab.process(name, "training").kill()
    failed = lab.wait_for_event("failed", name, before + 1)
    assert "signal 9" in failed["reason"]
    merged = len(lab.events("merged", name))
    lab.wait_for_event("merged", name, merged + 1)


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
    assert time.monotonic() - began < 120


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
