"""The checks find what they are there for: plug-ins of one file, each with one defect."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cos2p.testing import CHECKS, check_method

HEAD = """import torch
from typing import ClassVar
from pydantic import Field
from cos2p.methods import DeviceMethod, FedRolex, Learned, Method, TaskContract, Update


class {name}(DeviceMethod):
    mu: float = Field(default=0.1, ge=0, description="Pull towards the model as it came.")

    def before_step(self) -> None:
        for name, weight in self.model.named_parameters():
            if weight.grad is not None:
                weight.grad.add_(weight.detach() - self.start[name], alpha=self.mu)
"""

DEFECTS = {
    "declarations": """
    supports = frozenset({"step_in_backward"})
""",
    "promised": """
    def begin(self) -> None:
        for weight in self.model.parameters():
            weight.data.add_(torch.rand(weight.shape) * 1e-3)
""",
    "memory": """
    def begin(self) -> None:
        self.hoard = [{n: t.clone() for n, t in self.start.items()} for _ in range(20)]
""",
    "restart": """
    seen: ClassVar[dict[str, int]] = {}

    def begin(self) -> None:
        self.seen[self.order.client] = self.seen.get(self.order.client, 0) + 1
        for weight in self.model.parameters():
            weight.data.add_(1e-3 * self.seen[self.order.client])
""",
    "placement": """
    def end(self) -> Learned:
        learned = super().end()
        return Learned({name: tensor + torch.ones(tensor.shape) for name, tensor in learned.delta.items()})
""",
}


@pytest.mark.parametrize("check", DEFECTS)
def test_a_defect_is_found(check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"Wrong{check.title()}"
    (tmp_path / f"wrong_{check}.py").write_text(HEAD.format(name=name) + DEFECTS[check], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises((AssertionError, RuntimeError)):
        check_method(f"wrong_{check}:{name}", only=check)


def test_one_file_that_is_not_packaged_passes_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain_prox.py").write_text(HEAD.format(name="PlainProx"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for check in CHECKS:
        check_method("plain_prox:PlainProx", only=check)


def test_a_check_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match="there is no check 'restarts'; there are names, restart"):
        check_method("fedavg", only="restarts")


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    sets = ["schedule.rounds=1", "data.train_samples=200", "data.test_samples=20", "training.epochs=1", "model.depth=2"]
    command = [sys.executable, "-m", "cos2p", *arguments, *(part for value in sets for part in ("--set", value))]
    return subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONSAFEPATH": "1"}, capture_output=True, text=True)


def test_a_run_imports_it_in_its_workers_and_a_fleet_refuses_it(tmp_path: Path) -> None:
    (tmp_path / "my_prox.py").write_text(HEAD.format(name="Prox"), encoding="utf-8")
    chosen = ("--method", "my_prox:Prox")
    done = run(tmp_path, "run", "quickstart", *chosen, "--set", "method.mu=0.5", "--workers", "2", "--out", "run")
    assert done.returncode == 0, done.stderr
    wrong = run(tmp_path, "run", "quickstart", "--method", "my_prox:Other", "--out", "other")
    assert wrong.returncode != 0
    assert "my_prox.py has no class 'Other'" in wrong.stderr
    fleet = run(tmp_path, "fleet", "local", "run/recipe.toml", "--out", "fleet")
    assert fleet.returncode != 0
    assert "a real fleet runs only methods that are installed" in " ".join(fleet.stderr.split())
    assert "Traceback" not in fleet.stderr
