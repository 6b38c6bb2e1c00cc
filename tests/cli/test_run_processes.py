"""`cos2p run` as a user runs it: real processes, real signals. About half a minute on one core."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

PROGRAM = [sys.executable, "-c", "from cos2p.cli import main; main()"]
PROMISED_FILES = (
    "recipe.toml",
    "events.jsonl",
    "result.json",
    "checkpoint.safetensors",
    "weights.safetensors",
    "model/config.json",
    "model/model.safetensors",
)
PROMISED_KEYS = {
    *("top1", "top5", "f1", "client_top1", "ru", "busy", "virtual_seconds", "bytes_up", "bytes_down"),
    *("n_star", "seed", "method"),
}


def cos2p(*arguments: str | Path, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [*PROGRAM, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)


def test_quickstart_writes_the_run_folder(tmp_path: Path) -> None:
    out = tmp_path / "run"
    ended = cos2p("run", "quickstart", "--out", out, "--set", "schedule.rounds=2", "--set", "run.checkpoint_seconds=0")
    assert ended.returncode == 0, ended.stderr
    assert [name for name in PROMISED_FILES if not (out / name).exists()] == []
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    assert set(result) >= PROMISED_KEYS
    assert (result["rounds"], result["seed"], result["method"]) == (2, 0, "cos2p")
    assert result["bytes_down"] > result["bytes_up"] > 0
    assert "top-1" in ended.stdout
    assert "jetson-xavier-nx-8gb-1" in ended.stdout
    assert "Traceback" not in ended.stderr


def test_a_loss_that_is_not_finite_is_one_line_and_exit_code_8(tiny: Path, tmp_path: Path) -> None:
    ended = cos2p(
        "run", tiny, "-q", "--out", tmp_path / "run", "--set", "training.lr=1e9", "--set", "fleet.devices.0.count=1"
    )
    assert ended.returncode == 8
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert ended.stderr.startswith("error: no device is able to go on; pi-")
    assert "lower training.lr" in ended.stderr
    assert not (tmp_path / "run" / "result.json").exists()


def test_missing_data_shows_no_traceback(tiny: Path, tmp_path: Path) -> None:
    nowhere = ["--set", "data.source=npz", "--set", f"data.path={tmp_path}", "--set", "data.train=no.npz"]
    ended = cos2p("run", tiny, "--out", tmp_path / "run", *nowhere)
    assert ended.returncode == 6
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert str(tmp_path / "no.npz") in ended.stderr


def events(out: Path) -> list[dict[str, Any]]:
    log = out / "events.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True) if log.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_ctrl_c_leaves_a_run_that_can_go_on(tiny: Path, tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C reaches every process of the terminal, and a service manager's SIGTERM every process of the service: the
    signal goes to the whole group."""
    out = tmp_path / "run"
    running = subprocess.Popen(
        [*PROGRAM, "run", str(tiny), "--out", str(out), "--set", "schedule.rounds=30"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 300
    while not any(event["kind"] == "aggregated" for event in events(out)):
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(running.pid, number)
    _, said = running.communicate(timeout=300)
    assert running.returncode == 130
    assert said.splitlines()[-1].endswith(f"; go on with:  cos2p run --resume --out {out}")
    assert "Traceback" not in said

    resumed = cos2p("run", "--resume", "--out", out)
    assert resumed.returncode == 0, resumed.stderr
    assert "Co-S²P: resumed" in resumed.stderr
    assert json.loads((out / "result.json").read_text(encoding="utf-8"))["rounds"] == 30
    versions = [event["version"] for event in events(out) if event["kind"] == "aggregated"]
    assert versions == list(range(1, 31))  # every round once: nothing lost, nothing told twice


@pytest.mark.slow  # 8 s
def test_ctrl_c_while_the_workers_start_is_no_accident(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    running = subprocess.Popen(
        [*PROGRAM, "run", str(tiny), "--out", str(out), "--set", "schedule.rounds=30"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 300
    while not any(event["kind"] == "dispatched" for event in events(out)):
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.5)  # the worker is importing torch now
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=300)
    assert running.returncode == 130, said
    assert "Traceback" not in said
    assert "--resume" in said


def test_workers_do_not_outlive_a_killed_run(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    running = subprocess.Popen(
        [*PROGRAM, "run", str(tiny), "-q", "--out", str(out), "--set", "schedule.rounds=3000"], start_new_session=True
    )
    deadline = time.monotonic() + 300
    while not any(event["kind"] == "arrived" for event in events(out)):  # so the worker is at work
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    children = psutil.Process(running.pid).children(recursive=True)
    running.kill()
    running.wait()
    _, alive = psutil.wait_procs(children, timeout=60)
    for process in alive:
        process.kill()
    assert children
    assert alive == []
