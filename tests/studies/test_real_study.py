"""Real cells: a study that was killed goes on to the same table as one that was not, with one job or with two."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from cos2p.cli.app import app
from tests.studies.fakes import TINY

WALL_CLOCK = "wall_seconds"


def arguments(recipe: Path, out: Path, jobs: int) -> list[str]:
    options = ["--methods", "cos2p", "--seeds", "0,1", "--updates", "12"]
    return ["compare", str(recipe), *options, "--jobs", str(jobs), "--out", str(out), "-q"]


def tables(out: Path) -> list[Any]:
    study = json.loads((out / "study.json").read_text(encoding="utf-8"))
    for table in study["tables"]:
        for row in table["rows"]:
            del row["figures"][WALL_CLOCK]
    runs = list(csv.DictReader((out / "runs.csv").read_text(encoding="utf-8").splitlines()))
    return [study["tables"], [{key: run[key] for key in run if key != WALL_CLOCK} for run in runs]]


def tiny_recipe(folder: Path) -> Path:
    """The handwritten digits from a file: four processes need not import scikit-learn."""
    digits = load_digits()
    images, labels = (digits.images * 15).astype(np.uint8), digits.target
    np.savez(
        folder / "digits.npz",
        x_train=images[:120],
        y_train=labels[:120],
        x_test=images[120:170],
        y_test=labels[120:170],
    )
    recipe = folder / "tiny.toml"
    source = f'source = "npz"\npath = {json.dumps(str(folder))}\ntrain = "digits.npz"\nchannels = 1'
    recipe.write_text(TINY.replace('source = "digits"', source), encoding="utf-8")
    return recipe


def wait_until(happened: Callable[[], bool], seconds: float = 600.0) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


WAITS = """
import os, time
class Waiting:
    '''The second cell waits before it finishes, until it is killed.'''
    replace = staticmethod(os.replace)
    def __call__(self, source, target, **options):
        if "cos2p-s1" in str(target) and str(target).endswith("weights.safetensors"):
            time.sleep(3600)
        return self.replace(source, target, **options)
os.replace = Waiting()
"""


@pytest.mark.slow
def test_killed_in_the_middle_it_goes_on_to_the_same_table(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    result = CliRunner().invoke(app, arguments(recipe, whole, jobs=2))
    assert result.exit_code == 0, result.stderr

    first, second = broken / "cells" / "cos2p-s0", broken / "cells" / "cos2p-s1"
    start = [sys.executable, "-c", "from cos2p.cli import main; main()", *arguments(recipe, broken, jobs=1)]
    (tmp_path / "sitecustomize.py").write_text(WAITS, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(start, env={**os.environ, "PYTHONPATH": path}) as process:
        try:
            wait_until(lambda: (second / "checkpoint.safetensors").exists() or process.poll() is not None)
            family = psutil.Process(process.pid).children(recursive=True)
        finally:
            process.kill()
    wait_until(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in family))
    assert (first / "result.json").exists()
    assert not (second / "result.json").exists(), "it was killed too late to show anything"
    finished = (first / "result.json").stat().st_mtime_ns

    result = CliRunner().invoke(app, arguments(recipe, broken, jobs=2))
    assert result.exit_code == 0, result.stderr
    assert (first / "result.json").stat().st_mtime_ns == finished, "finished cells are kept"
    assert tables(broken) == tables(whole)
    for name in ("cos2p-s0", "cos2p-s1"):
        weights = [(out / "cells" / name / "weights.safetensors").read_bytes() for out in (whole, broken)]
        assert weights[0] == weights[1], "bit for bit"
