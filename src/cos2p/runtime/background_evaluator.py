"""Evaluation next to the training: one version at a time, always the newest."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from cos2p.models.layout import Weights
from cos2p.processes.pool import WorkerDied
from cos2p.runtime.workers import wait

LAST_ATTEMPTS = 3
"""How often the last evaluation is begun, should its process be killed."""


class Evaluator(Protocol):
    def evaluate(self, weights: Weights, everything: bool = False) -> Future[dict[str, Any]]:
        """Scores on the validation and test samples; on a part of each, unless `everything`."""


@dataclass(frozen=True)
class Evaluation:
    """What came of an evaluation; no scores if its process was killed."""

    version: int
    scores: dict[str, Any] | None


class BackgroundEvaluator:
    """A slow evaluation skips versions instead of falling behind, unless it is waited for."""

    def __init__(self, evaluator: Evaluator, newest: Callable[[], tuple[int, Weights]]) -> None:
        self._evaluator, self._newest = evaluator, newest
        self._running: tuple[int, Future[dict[str, Any]]] | None = None
        self._wanted = False

    @property
    def at_work(self) -> bool:
        return self._running is not None

    def ask(self, everything: bool = False) -> None:
        """The newest version shall be scored, at once or when the evaluation under way is done; on all samples, or on
        those that a run looks at while it goes on."""
        self._wanted = True
        self._start(everything)

    def evaluation(self) -> Evaluation | None:
        """An evaluation that is done; the next one, if it was asked for, begins."""
        if self._running is None or not self._running[1].done():
            return None
        version, future = self._running
        self._running = None
        try:
            scores: dict[str, Any] | None = future.result()
        except WorkerDied:
            scores = None
        self._start()
        return Evaluation(version, scores)

    def awaited_evaluation(self) -> Evaluation | None:
        """The evaluation under way, when it is done; RunError if its process was killed."""
        if self._running is None:
            return None
        version, future = self._running
        scores = wait(future)
        self._running = None
        return Evaluation(version, scores)

    def last(self) -> tuple[int, dict[str, Any]]:
        """The newest version and its scores on all samples; waits for them. RunError if that fails again and again."""
        if self._running is not None:
            self._running[1].cancel()
        version, weights = self._newest()
        for _ in range(LAST_ATTEMPTS - 1):
            try:
                return version, self._evaluator.evaluate(weights, everything=True).result()
            except WorkerDied:
                continue
        return version, wait(self._evaluator.evaluate(weights, everything=True))

    def _start(self, everything: bool = False) -> None:
        if self._running is None and self._wanted:
            self._wanted = False
            version, weights = self._newest()
            self._running = (version, self._evaluator.evaluate(weights, everything))
