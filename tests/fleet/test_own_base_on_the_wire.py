"""`cos2p fleet join --base`: a device with the run's checkpoint in its own files is not sent it, one with another is.
About half a minute on two idle cores."""

from __future__ import annotations

from pathlib import Path

import pytest

from cos2p.fleet.device.owner import DeviceFile
from cos2p.models.hub import save_pretrained
from cos2p.models.layout import init_weights
from cos2p.training.own_base import own_parts
from tests.fleet.lab import running_lab, small_recipe
from tests.tiny import VIT

pytestmark = [pytest.mark.fleet, pytest.mark.slow]


def test_a_device_with_the_checkpoint_is_not_sent_it_and_one_with_another_is(tmp_path: Path) -> None:
    config = VIT.with_(dim=64, mlp=256, image=8, patch=4, channels=1, classes=10)
    own, foreign = (save_pretrained(tmp_path / name, config, init_weights(config, n)) for n, name in enumerate("ab"))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "config.json").write_text("{}")
    devices = {
        name: DeviceFile(threads=1, base=str(folder))
        for name, folder in (("dev-1", own), ("dev-2", foreign), ("dev-3", tmp_path / "c"))
    }
    recipe = small_recipe(
        3,
        rounds=3,
        model={"pretrained": str(own)},
        method={"name": "fedlora", "rank": 2, "precision": "int8", "start": "fresh"},
    )
    with running_lab(tmp_path, recipe, devices) as lab:
        lab.start_run()
        lab.finish()
        first: dict[str, int] = {}
        for event in lab.events("dispatched"):
            first.setdefault(event["client"], event["bytes"])
        log = (lab.machine("dev-3").kit.folder / "training.log").read_text()
    frozen = sum(tensor.nbytes for part in own_parts(own, config, "int8", None) for tensor in part.values())
    assert first["dev-2"] - first["dev-1"] > 0.95 * frozen
    assert first["dev-3"] - first["dev-1"] > 0.95 * frozen
    assert "is of no use to this run, which sends its own" in log
