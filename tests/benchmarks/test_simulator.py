"""The plain loop does the same work as the simulator, and the meter sees the whole tree of processes."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.peers import environment
from benchmarks.peers.environment import PeersMissing
from benchmarks.peers.work import load
from benchmarks.simulator.__main__ import FLOOR, Cost, entries, show
from benchmarks.simulator.floor import play
from benchmarks.simulator.meter import Failed, run_metered
from benchmarks.simulator.stages import Clock, Inline
from benchmarks.simulator.workload import NO_PARTICIPATION, Workload
from cos2p.aggregation.settings import ScheduleSettings
from cos2p.runtime import workers
from cos2p.runtime.simulation import run


def test_every_stage_that_is_timed_exists() -> None:
    clock = Clock()
    clock.attach()
    clock.detach()


def test_the_loop_ends_with_the_weights_of_the_simulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same batches, same steps, same average: what differs in time is not the work."""
    few = {"source": "digits", "train_samples": 80, "test_samples": 20}
    monkeypatch.setattr(workers, "ProcessPool", Inline)
    monkeypatch.setattr(Workload, "_data", lambda self, folder: few)
    work = Workload(devices=5, per_round=5)
    file = work.export(tmp_path)
    run(work.recipe(2, 1, tmp_path), tmp_path / "run")
    ours = load_file(tmp_path / "run" / "weights.safetensors")

    plain = load(Namespace(file=file, rounds=2, per_round=5, workers=1))
    before = dict(plain.model.inner.weights())
    moved = {name: tensor.clone() for name, tensor in before.items()}
    final = play(plain, torch.load(file, weights_only=True)["names"])
    with torch.no_grad():
        torch._foreach_copy_(list(plain.model.parameters()), final)
    theirs = plain.model.inner.weights()
    assert len(theirs) > 100
    for name, tensor in theirs.items():
        torch.testing.assert_close(tensor, ours[name], atol=2e-6, rtol=1e-4, msg=name)
    assert any((tensor - theirs[name]).abs().max() > 1e-3 for name, tensor in moved.items())


def test_every_device_of_either_fleet_takes_two_steps(tmp_path: Path) -> None:
    for work in (Workload(100, 100), Workload(1000, 100)):
        shards = torch.load(work.export(tmp_path), weights_only=True)["shards"]
        assert len(shards) == work.devices
        assert {-(-len(labels) // 8) for _, labels in shards} == {2}


def test_cos2p_is_left_out_with_a_reason_where_it_cannot_choose_who_takes_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some, known = Workload(20, 10), "clients_per_round" in ScheduleSettings.model_fields
    names = [entry.name for entry in entries(some, tmp_path, [1], with_peers=False)]
    assert names == ([FLOOR, "cos2p"] if known else [FLOOR])
    assert (NO_PARTICIPATION in capsys.readouterr().out) is not known
    assert Workload(20, 20).why_not() is None


def test_processor_time_of_children_is_counted() -> None:
    busy = "import time\nwhile time.process_time() < 0.5: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"
    spent = run_metered([sys.executable, "-c", parent], dict(os.environ))
    assert 0.5 <= spent.processor < 3
    assert spent.wall >= 0.4


def test_a_command_that_fails_is_named_with_its_last_line() -> None:
    with pytest.raises(Failed, match="no such peer"):
        run_metered([sys.executable, "-c", "raise SystemExit('no such peer')"], dict(os.environ))


def test_an_environment_that_is_ready_is_not_made_again(tmp_path: Path) -> None:
    wanted = f"{environment.TORCH} {environment.FEDLAB}\n" + environment.REQUIREMENTS.read_text(encoding="utf-8")
    (tmp_path / "ready.txt").write_text(wanted, encoding="utf-8")
    assert environment.python(tmp_path) == tmp_path / "bin" / "python"


def test_an_environment_that_cannot_be_made_says_why() -> None:
    with pytest.raises(PeersMissing, match="ERROR: nothing there"):
        environment._run([sys.executable, "-c", "raise SystemExit('ERROR: nothing there')"])


def test_a_stage_is_charged_without_those_inside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 3.0, 10.0])  # outer starts, inner starts, inner ends, outer ends
    monkeypatch.setattr("benchmarks.simulator.stages.time.process_time", lambda: next(now))
    clock = Clock()
    inner = clock.watch("inner", lambda: None)
    clock.watch("outer", inner)()
    assert clock.seconds == {"inner": 2.0, "outer": 8.0}


def test_ratios_are_to_the_loop_of_the_same_turn(capsys: pytest.CaptureFixture[str]) -> None:
    floor = [Cost(0.02, 1, 1, 0.02), Cost(0.04, 1, 1, 0.04)]
    show({(FLOOR, 1): floor, ("cos2p", 1): [Cost(0.04, 3, 4, 0.04), Cost(0.04, 3, 4, 0.04)]})
    line = capsys.readouterr().out.splitlines()[-1].split()
    assert line == ["cos2p", "1", "40.0", "1.50", "1.00", "to", "2.00", "40.0", "1.50", "3.0", "4.0"]
