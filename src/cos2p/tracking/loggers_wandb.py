"""Weights & Biases: a run of the project, named like its folder. WANDB_MODE=offline writes to RUN/wandb alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cos2p.errors import MissingExtra, RunError
from cos2p.tracking.event_kinds import Started
from cos2p.tracking.loggers import Point


class WandbLog:
    """The step is the round; the run's own seconds are the curve `run/seconds`."""

    def __init__(self, folder: Path, project: str) -> None:
        try:
            import wandb
        except ImportError:
            raise MissingExtra("--wandb needs Weights & Biases: pip install 'cos2p[wandb]'") from None
        self._wandb, self.folder, self._project = wandb, folder, project
        self._run: Any = None

    def begin(self, started: Started) -> None:
        self._end(0)
        facts = {name: getattr(started, name) for name in ("recipe", "method", "seed", "rounds", "updates", "model")}
        try:
            self._run = self._wandb.init(
                project=self._project,
                name=self.folder.name,
                dir=str(self.folder),
                config=facts,
                settings=self._wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True),
            )
        except self._wandb.Error as error:
            raise RunError(
                f"Weights & Biases: {error}; log in first (wandb login), or set WANDB_MODE=offline"
            ) from None

    def add(self, points: Iterable[Point]) -> None:
        assert self._run is not None
        by_step: dict[int, dict[str, float]] = defaultdict(dict)
        for point in points:
            by_step[point.step] |= {point.name: point.value, "run/seconds": point.seconds}
        for step, values in by_step.items():
            self._run.log(values, step=step)

    def close(self, outcome: str) -> None:
        self._end(0 if outcome == "finished" else 1)

    def _end(self, code: int) -> None:
        if self._run is not None:
            self._run.finish(exit_code=code)
            self._run = None
