"""A real fleet in real processes, and the faults a client can have, with kill -9. About 40 s on two idle cores."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import safetensors.torch
import torch

from tests.nvflare.lab import Lab, running_lab, slow, small_recipe

pytestmark = pytest.mark.fleet


def test_a_run_survives_what_happens_to_its_clients(tmp_path: Path) -> None:
    recipe = small_recipe(devices=2, rounds=100_000)
    with running_lab(tmp_path, recipe, {"dev-1": slow(1.0), "dev-2": slow(1.0)}) as lab:
        lab.start_run()
        lab.wait_for_event("merged", "dev-1")
        the_training_process_is_killed(lab, "dev-1")
        the_job_process_is_killed(lab, "dev-2")
        the_whole_client_is_killed_and_started_again(lab, "dev-1")
        lab.wait_for_event("merged", "dev-2", count=len(lab.events("merged", "dev-2")) + 1)
        result = lab.end_run()
        the_folder_is_that_of_a_simulation(lab, result)


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
    assert "refused" not in kinds
