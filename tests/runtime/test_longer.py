"""A finished run goes on to more rounds, and is then the longer run; a folder belongs to one run at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cos2p.errors import BudgetError, RunError
from cos2p.runtime.run_folder import WALL_CLOCK_FIELDS
from cos2p.runtime.simulation import run
from cos2p.tracking.files import held, prepare_folder
from tests.runtime.small import small

FLAT = {"epochs": 1, "lr": 2e-3, "lr_schedule": "constant"}


def outcome(folder: Path) -> tuple[bytes, dict[str, object]]:
    result = json.loads((folder / "result.json").read_text())
    return (folder / "weights.safetensors").read_bytes(), {
        k: v for k, v in result.items() if k not in WALL_CLOCK_FIELDS
    }


@pytest.mark.slow  # 15 s: three runs
def test_more_rounds_give_the_longer_run(tmp_path: Path) -> None:
    run(small(schedule={"rounds": 1}, training=FLAT), tmp_path / "short")
    run(small(schedule={"rounds": 3}, training=FLAT), tmp_path / "short", resume=True)
    run(small(schedule={"rounds": 3}, training=FLAT), tmp_path / "long")
    assert outcome(tmp_path / "short") == outcome(tmp_path / "long")


@pytest.mark.slow  # 5 s
def test_fewer_rounds_or_anything_else_is_another_run(tmp_path: Path) -> None:
    run(small(schedule={"rounds": 1}, training=FLAT), tmp_path / "r")
    with pytest.raises(RunError, match=r"another recipe \(schedule\.rounds, training\.lr differ"):
        run(small(schedule={"rounds": 3}, training=FLAT | {"lr": 1e-3}), tmp_path / "r", resume=True)
    assert (tmp_path / "r" / "result.json").exists()


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "r")
    (tmp_path / "r" / "events.jsonl").write_text('{"kind":"merged"}\n')
    with held(tmp_path / "r"):
        for options in ({"overwrite": True}, {"resume": True}, {}):
            with pytest.raises(RunError, match="is in use by a run that goes on"):
                prepare_folder(tmp_path / "r", **options)
    assert (tmp_path / "r" / "events.jsonl").exists()
    prepare_folder(tmp_path / "r", overwrite=True)
    assert not (tmp_path / "r" / "events.jsonl").exists()


def test_after_a_start_that_failed_the_next_one_needs_no_option(tmp_path: Path) -> None:
    too_small = [{"preset": "laptop", "count": 1, "rate": 1.0, "batch": 16, "memory": "1MB"}]
    with pytest.raises(BudgetError):
        run(small(fleet={"devices": too_small}), tmp_path / "r")
    run(small(schedule={"rounds": 1}, training=FLAT), tmp_path / "r")
    with pytest.raises(RunError, match="is not empty"):
        run(small(schedule={"rounds": 1}, training=FLAT), tmp_path / "r")


@pytest.mark.slow
def test_a_script_needs_no_guard_since_workers_do_not_import_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from cos2p.runtime.simulation import run\nfrom tests.runtime.small import small\n"
        f"run(small(schedule={{'rounds': 1}}), {str(tmp_path / 'r')!r})\n"
    )
    places = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": places}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "r" / "result.json").is_file()
