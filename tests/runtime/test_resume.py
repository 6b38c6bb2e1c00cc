"""Killed at any moment, a run goes on as if nothing had happened."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cos2p.errors import RunError
from cos2p.recipe import Recipe
from cos2p.runtime.model_folder import recipe_toml
from cos2p.runtime.run_folder import WALL_CLOCK_FIELDS
from cos2p.runtime.run_setup import build_run_setup
from cos2p.runtime.simulation import Simulation, run
from cos2p.tracking.checkpoint import Checkpoint
from cos2p.training.client_cache import ClientCache
from tests.runtime.small import VALUES, InlineWorkers, small

SCHEDULE = {"rounds": 4, "t_clk": 2.0}


def figures(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key not in WALL_CLOCK_FIELDS}


class Crash(Exception):
    pass


def test_a_crash_after_any_event_changes_nothing(tmp_path: Path) -> None:
    """In process: crash after every single event, each time going on from the checkpoint before it."""
    method = {"name": "cos2p", "masks": {"rounds": 2, "epochs": 1, "lr": 0.05}}
    changes = {"fleet": {"devices": _faulty_devices()}, "training": {"lr": "auto"}}
    run_setup = build_run_setup(small(schedule=SCHEDULE, method=method, **changes))

    def fresh(log: list[Any], place: str = "crashed") -> Simulation:
        return Simulation(run_setup, InlineWorkers(run_setup, ClientCache(tmp_path / place, parts=False)), log.append)  # type: ignore[arg-type]

    whole: list[Any] = []
    reference = fresh(whole, "whole")
    reference.begin()
    reference.play(lambda: None)

    log: list[Any] = []
    simulation = fresh(log)
    simulation.begin()
    path, crashes = tmp_path / "checkpoint", 0
    while True:
        done = len(log)

        def crash(simulation: Simulation = simulation) -> None:
            simulation.save().write(path)
            raise Crash

        try:
            simulation.play(crash)
            break
        except Crash:
            crashes += 1
            checkpoint = Checkpoint.read(path)
            assert len(log) >= done
            simulation = fresh(log)
            simulation.restore(checkpoint.values, checkpoint)
            simulation.figures.replay(log)
    assert crashes > 20
    assert log == whole
    assert simulation.figures.result() == reference.figures.result()
    for name, tensor in reference.server.weights.items():
        assert tensor.equal(simulation.server.weights[name]), name


def _faulty_devices() -> list[dict[str, Any]]:
    weak = {"preset": "jetson-xavier-nx-8gb", "count": 2, "rate": 0.0625, "batch": 16, "flops": 1e7, "drop_rate": 0.3}
    strong = {"preset": "jetson-agx-orin-64gb", "count": 2, "rate": 0.5625, "batch": 32, "flops": 9e7}
    return [weak, strong]


def submodels(workers: int) -> Recipe:
    return small(schedule=SCHEDULE, run={"workers": workers})


def whole_models(workers: int) -> Recipe:
    """Tasks of a round carry the same tensors, which a worker is sent once."""
    device = {"preset": "laptop", "count": 4, "rate": 1.0, "batch": 32}
    changes = {"schedule": {"rounds": 3}, "method": {"name": "fedavg"}, "fleet": {"devices": [device]}}
    return Recipe.parse({**VALUES, **changes, "run": {"workers": workers}})


@pytest.mark.parametrize("recipe", [submodels, whole_models])
def test_one_and_two_workers_give_the_same_run_bit_for_bit(tmp_path: Path, recipe: Callable[[int], Recipe]) -> None:
    results = [run(recipe(n), tmp_path / str(n)) for n in (1, 2)]
    assert figures(results[0]) == figures(results[1])
    assert (tmp_path / "1/events.jsonl").read_bytes() == (tmp_path / "2/events.jsonl").read_bytes()
    assert (tmp_path / "1/weights.safetensors").read_bytes() == (tmp_path / "2/weights.safetensors").read_bytes()


@pytest.mark.slow
def test_kill_nine_at_random_moments(tmp_path: Path) -> None:
    """Real processes, real kills. The moments are drawn; the outcome must not depend on them."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(recipe_toml(small(schedule=SCHEDULE)), encoding="utf-8")
    whole = run(small(schedule=SCHEDULE), tmp_path / "whole")
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "cos2p", "run", str(recipe), "--out", str(out), "--resume", "-q"]
    rng, kills = random.Random(5), 0
    while not (out / "result.json").exists():
        with (tmp_path / "errors").open("w") as errors:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        begun = _size(out)
        while process.poll() is None and _size(out) == begun:  # let it get past its start ...
            time.sleep(0.02)
        time.sleep(rng.uniform(0.0, 0.6))  # ... and then strike
        if process.poll() is None and kills < 4:
            process.kill()  # the main process alone, as a crash would: its workers must notice
            kills += 1
        process.wait(timeout=120)
        if process.returncode not in (0, -signal.SIGKILL):
            pytest.fail((tmp_path / "errors").read_text())
    assert kills >= 2
    assert figures(json.loads((out / "result.json").read_text())) == figures(whole)
    assert (out / "events.jsonl").read_bytes() == (tmp_path / "whole/events.jsonl").read_bytes()
    assert (out / "weights.safetensors").read_bytes() == (tmp_path / "whole/weights.safetensors").read_bytes()


def _size(out: Path) -> int:
    log = out / "events.jsonl"
    return log.stat().st_size if log.exists() else 0


def test_resuming_with_another_recipe_is_refused_by_the_field(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(small(schedule={"rounds": 1}), out)
    with pytest.raises(Exception, match=r"training\.lr"):
        run(small(schedule={"rounds": 1}, training={"lr": 0.5}), out, resume=True)


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = run(small(schedule={"rounds": 1}), out)
    assert run(small(schedule={"rounds": 1}), out, resume=True) == first


def test_a_checkpoint_of_another_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as older:
        older.setattr("cos2p.tracking.checkpoint.FORMAT", 1)
        Checkpoint({"log": 0}).write(tmp_path / "checkpoint")
    with pytest.raises(RunError, match=r"was written by an older version of cos2p \(format 1.*--overwrite"):
        Checkpoint.read(tmp_path / "checkpoint")


def test_a_checkpoint_of_a_fleet_is_not_a_simulations(tmp_path: Path) -> None:
    (tmp_path / ".cos2p-run").touch()
    Checkpoint({"kind": "fleet", "session": {}, "log": 0}).write(tmp_path / "checkpoint.safetensors")
    with pytest.raises(RunError, match="holds the checkpoint of a fleet, not of a simulation"):
        run(small(schedule={"rounds": 1}), tmp_path, resume=True)
