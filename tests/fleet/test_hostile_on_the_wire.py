"""One device of four lies, over real connections: it is refused, named and excluded, and the run ends well.

About two minutes on two idle cores.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

from cos2p.server.rules import Rules
from tests.fleet.lab import Lab, running_lab, small_recipe

pytestmark = [pytest.mark.fleet, pytest.mark.slow]

MALICIOUS = "dev-4"
HONEST = ("dev-1", "dev-2", "dev-3")
ROUNDS = 14


def test_a_lying_device_is_named_and_benched_and_the_others_go_on(tmp_path: Path) -> None:
    recipe = small_recipe(
        4, rounds=ROUNDS, method={"name": "fedavg"}, partition={"kind": "iid"},
        data__train_samples=400, training={"epochs": 3, "optimizer": "sgd", "lr": 0.05},
        fleet__enforce_memory=False, fleet__heartbeat_seconds=60.0,
        robust={"bound": 2.0, "suspicion": "exclude"},
    )  # fmt: skip
    with running_lab(tmp_path, recipe, absent=(MALICIOUS,)) as lab:
        say(lab, "mixed")
        lab.start_hostile(MALICIOUS, "tests.fleet.poison")
        lab.start_run()
        what_cannot_be_read_is_refused_by_name(lab)
        what_undoes_the_others_is_benched(lab)
        the_others_end_the_run(lab)

        say(lab, "malformed")
        lab.out = tmp_path / "second"
        lab.start_run()
        result = lab.finish()
        assert result["finished"] == "rounds"
        (excluded,) = lab.reported("excluded", MALICIOUS)
        assert "not an update" in excluded["reason"]
        assert len(lab.reported("refused", MALICIOUS)) == Rules.max_failures
        assert not lab.reported("merged", MALICIOUS)


def say(lab: Lab, lies: str) -> None:
    (lab.machine(MALICIOUS).kit.folder / "lies").write_text(lies)
    (lab.machine(MALICIOUS).kit.folder / "lies.count").unlink(missing_ok=True)


def what_cannot_be_read_is_refused_by_name(lab: Lab) -> None:
    first = lab.wait_for_event("refused", MALICIOUS, 1)
    second = lab.wait_for_event("refused", MALICIOUS, 2)
    assert "not as long as its shape says" in first["reason"]
    assert "5000 digits" in second["reason"]
    assert "its answer cannot be read" in lab.wait_for_event("refused", MALICIOUS, 3)["reason"]


def what_undoes_the_others_is_benched(lab: Lab) -> None:
    excluded = lab.wait_for_event("excluded")
    assert excluded["client"] == MALICIOUS
    assert "counted for nothing" in excluded["reason"]
    doubted = lab.events("doubted", MALICIOUS)
    assert doubted
    assert doubted[-1]["trust"] == 0.0


def the_others_end_the_run(lab: Lab) -> None:
    result = lab.finish()
    assert result["finished"] == "rounds"
    last = lab.reported("excluded", MALICIOUS)[0]
    assert lab.reported("dispatched", MALICIOUS)[-1]["t"] < last["t"]
    for name in HONEST:
        assert len(lab.reported("merged", name)) == ROUNDS
        assert len(lab.reported("joined", name)) == 1  # again, if a process of the server had stumbled
        assert lab.reported("dispatched", name)[-1]["t"] > last["t"]
    assert {event["client"] for event in lab.reported("refused")} == {MALICIOUS}
    assert {event["client"] for event in lab.reported("excluded")} == {MALICIOUS}
    weights = safetensors.torch.load_file(lab.out / "weights.safetensors")
    assert all(bool(torch.isfinite(tensor).all()) for tensor in weights.values())
    assert "Traceback" not in (lab.folder / "run.log").read_text()
