from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cos2p.tracking.event_kinds import Started
from cos2p.tracking.loggers import Point, WandbLog

STARTED = Started(recipe="tiny", method="cos2p", title="", seed=1, rounds=2, updates=None, model={}, devices={})


class FakeRun:
    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.code: int | None = None

    def log(self, values: dict[str, float], step: int) -> None:
        self.logged.append((step, values))

    def finish(self, exit_code: int) -> None:
        self.code = exit_code


def test_points_of_a_round_are_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb: Any = pytest.importorskip("wandb", reason="cos2p[wandb] is not installed")
    run, asked = FakeRun(), {}
    monkeypatch.setattr(wandb, "init", lambda **options: asked.update(options) or run)
    log = WandbLog(tmp_path / "first", "fleet")
    log.begin(STARTED)
    log.add([Point("a", 1.0, 1, 5.0), Point("b", 2.0, 1, 5.0), Point("a", 3.0, 2, 9.0)])
    log.close("stopped")
    assert run.logged == [(1, {"a": 1.0, "b": 2.0, "run/seconds": 5.0}), (2, {"a": 3.0, "run/seconds": 9.0})]
    assert (asked["project"], asked["name"], asked["config"]["method"]) == ("fleet", "first", "cos2p")
    assert run.code == 1


@pytest.mark.slow
def test_offline_it_writes_into_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real thing, without a network. Ten seconds."""
    pytest.importorskip("wandb", reason="cos2p[wandb] is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    log = WandbLog(tmp_path, "fleet")
    log.begin(STARTED)
    log.add([Point("a", 1.0, 1, 5.0)])
    log.close("finished")
    assert list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
