"""The how-to's method with a device half of its own, installed as a package of somebody else's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cos2p.errors import ConfigError
from cos2p.methods import Method, Trainer, methods, registry
from tests.docs.blocks import REPOSITORY, blocks


def install(folder: Path) -> None:
    """`fedprox.py` of the page, and what `pip install` would leave of its entry point."""
    (code,) = (b.code for b in blocks(REPOSITORY / "docs/howto/add-a-method.md") if "class FedProx(" in b.code)
    (folder / "fedprox.py").write_text(code.split("'''")[1], encoding="utf-8")
    info = folder / "fedprox-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fedprox\nVersion: 0.1\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[cos2p.methods]\nfedprox = fedprox:FedProx\n", encoding="utf-8")


def test_an_installed_method_brings_its_trainer_to_the_workers(tmp_path: Path) -> None:
    install(tmp_path)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    sets = ["schedule.rounds=2", "data.train_samples=200", "data.test_samples=20", "training.epochs=1", "model.depth=2"]
    command = [sys.executable, "-m", "cos2p", "run", "quickstart", "--method", "fedprox", "--workers", "2"]
    command += [part for value in sets for part in ("--set", value)]
    done = subprocess.run(
        [*command, "--out", "run"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert (result["method"], result["rounds"]) == ("fedprox", 2)
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    assert kinds.count("merged") == 16
    assert not {"failed", "refused", "dropped"} & set(kinds)


def test_two_trainers_of_one_name_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(Trainer):
        name = "submodel"

    class Mine(Method):
        trainers = (Other,)

    monkeypatch.setattr(registry, "methods", lambda: {**methods(), "mine": Mine})
    with pytest.raises(ConfigError, match=r"two trainers are called 'submodel': .*SubmodelTrainer and .*Other; rename"):
        registry.trainers()
