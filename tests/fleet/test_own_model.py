"""What a device of a real fleet keeps for its owner: its own submodel, that answers without the server.

About half a minute on two idle cores.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from cos2p.cli.app import app
from tests.fleet.lab import running_lab, small_recipe

pytestmark = [pytest.mark.fleet, pytest.mark.slow]


def cli(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_devices_own_submodel_is_in_its_kit_and_answers(tmp_path: Path) -> None:
    recipe = small_recipe(2, rounds=2, fleet__reports="full", partition={"kind": "iid", "local_test": 0.25})
    with running_lab(tmp_path, recipe) as lab:
        lab.start_run()
        result = lab.finish()
        kits = {name: device.kit.folder for name, device in lab.fleet.devices.items()}
    image = load_digits().images[3]
    Image.fromarray((image * 255 / 16).astype(np.uint8)).save(tmp_path / "three.png")
    for name, kit in kits.items():
        (own,) = (kit / "own-models").glob("*.safetensors")
        assert own.stat().st_mode & 0o077 == 0, "the kit is its owner's alone"
        said = json.loads(cli("predict", own, tmp_path / "three.png", "--json", "--top", 10))
        assert {answer["label"] for answer in said["top"]} == set("0123456789")
        assert sum(answer["probability"] for answer in said["top"]) == pytest.approx(1, abs=1e-5)
        cli("export", own, "-o", tmp_path / name)
        again = json.loads(cli("predict", tmp_path / name, tmp_path / "three.png", "--json"))
        assert again["probability"] == pytest.approx(said["probability"], abs=1e-5)
        assert result["devices"][name]["top1"] is not None
