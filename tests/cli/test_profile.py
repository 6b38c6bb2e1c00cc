from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cos2p.cli.app import app
from cos2p.errors import BudgetError, ConfigError
from cos2p.fleet.device.profile import profile, read_device


def cli(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["profile", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_one_task_is_trained_and_its_figures_kept(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "device.toml"
    code, words, err = cli(tiny, "--memory", "100MB", "--samples", "20", "--json", "--out", out)
    assert code == 0, err
    found, kept = json.loads(words), read_device(out)
    assert found["samples"] == kept["samples"] == 20
    assert kept["memory"] == 100_000_000
    assert 0 < kept["peak"] <= kept["predicted"] <= kept["memory"]
    assert kept["flops"] > 0
    assert kept["accelerator"] == "cpu"


def test_a_private_recipe_leaves_no_account_behind(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    private = ["privacy.noise=local", "privacy.multiplier=2.0"]
    code, _, err = cli(
        tiny, "--method", "fedrolex", "--samples", "20", *(word for change in private for word in ("--set", change))
    )
    assert code == 0, err
    assert [file.name for file in (tmp_path / "here").iterdir()] == ["device.toml"]


def test_what_does_not_fit_is_refused(tiny: Path) -> None:
    code, _, err = cli(tiny, "--memory", "10kB")
    assert code == BudgetError.exit_code
    assert "10.0 kB" in err


def test_a_file_without_figures_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("memory = 5\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="flops is None; make the file with: cos2p profile"):
        read_device(tmp_path / "bad.toml")


@pytest.mark.gpu
def test_a_profile_of_a_gpu(tiny: Path) -> None:
    found = profile(str(tiny), memory=400_000_000, samples=20, accelerator="auto")
    assert found.accelerator == "cuda:0"
    assert 0 < found.peak <= found.predicted
