"""A private run on a real fleet, with a device whose owner gives little, and a server that is killed in the middle.

About a minute and a half on two idle cores.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cos2p.aggregation.settings import PrivacySettings
from tests.fleet.lab import running_lab, slow, small_recipe

pytest.importorskip("dp_accounting")
pytestmark = [pytest.mark.fleet, pytest.mark.slow]


def test_privacy_and_owners_hold_on_a_real_fleet(tmp_path: Path) -> None:
    method = {"name": "cos2p", "weighting": "uniform", "masks": {"heads": "fixed", "units": "fixed"}}
    recipe = small_recipe(devices=2, rounds=100_000, schedule__redispatch="at-aggregation", method=method)
    private = PrivacySettings(noise="local", multiplier=1.0, clip=0.01)
    recipe = recipe.model_copy(update={"privacy": private})
    with running_lab(tmp_path, recipe, {"dev-1": slow(1.0)}, absent=("dev-2",)) as lab:
        (lab.machine("dev-2").kit.folder / "owner.toml").write_text('[spend]\nbytes_per_day = "450kB"\n')
        lab.machine("dev-2").start()
        lab.start_run()
        failed = lab.wait_for_event("failed", "dev-2")
        assert failed["reason"].startswith("owner: its owner has not allowed what the run asks (bytes_per_day: ")
        assert lab.wait_for_event("excluded", "dev-2")["reason"]
        lab.wait_for_event("spent", count=3)
        merged = lab.events("merged", "dev-1")
        assert all(event["report"] == {} and event["size"] == 0.0 for event in merged)
        lab.process("server", "server job").kill()
        lives = len(lab.events("joined", "dev-1"))
        lab.wait_for(lambda: len(lab.events("joined", "dev-1")) != lives)
        lab.wait_for_event("merged", "dev-1", count=1)
        result = lab.end_run()
        cost = result["privacy"]
        assert cost["noise"] == "local"
        assert cost["devices"]["dev-1"]["updates"] >= len(merged)  # what was released before the kill counts
        assert cost["epsilon"] == max(own["epsilon"] for own in cost["devices"].values()) > 0
