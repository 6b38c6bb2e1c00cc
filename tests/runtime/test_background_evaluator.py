from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from cos2p.errors import RunError
from cos2p.processes.pool import WorkerDied
from cos2p.runtime.evaluation import LAST_ATTEMPTS, BackgroundEvaluator, Evaluation


class Slow:
    """An evaluator whose answers the test gives; what is in `broken` answers with a dead process at once."""

    def __init__(self, broken: int = 0) -> None:
        self.begun: list[tuple[Any, Future[dict[str, Any]]]] = []
        self.broken = broken

    def evaluate(self, weights: Any, everything: bool = False) -> Future[dict[str, Any]]:
        future: Future[dict[str, Any]] = Future()
        self.begun.append((weights, future))
        if self.broken:
            self.broken -= 1
            future.set_exception(WorkerDied("killed"))
        elif everything:
            future.set_result({"test": weights})
        return future


class Model:
    version = 0

    def newest(self) -> tuple[int, Any]:
        return self.version, f"weights {self.version}"


def evaluated(broken: int = 0) -> tuple[BackgroundEvaluator, Slow, Model]:
    slow, model = Slow(broken), Model()
    return BackgroundEvaluator(slow, model.newest), slow, model  # type: ignore[arg-type]


def test_a_slow_evaluation_skips_versions() -> None:
    evaluations, slow, model = evaluated()
    for model.version in (1, 2, 3):
        evaluations.ask()
    assert [weights for weights, _ in slow.begun] == ["weights 1"]
    assert evaluations.evaluation() is None
    slow.begun[0][1].set_result({"test": 1})
    assert evaluations.evaluation() == Evaluation(1, {"test": 1})
    assert [weights for weights, _ in slow.begun] == ["weights 1", "weights 3"]
    slow.begun[1][1].set_result({"test": 3})
    assert evaluations.evaluation() == Evaluation(3, {"test": 3})
    assert evaluations.evaluation() is None
    assert len(slow.begun) == 2


def test_a_killed_process_costs_one_evaluation_and_the_next_one_begins() -> None:
    evaluations, slow, model = evaluated(broken=1)
    evaluations.ask()
    model.version = 5
    evaluations.ask()
    assert evaluations.evaluation() == Evaluation(0, None)
    assert slow.begun[-1][0] == "weights 5"


def test_the_last_one_is_tried_again() -> None:
    evaluations, slow, _ = evaluated(broken=LAST_ATTEMPTS - 1)
    assert evaluations.last() == (0, {"test": "weights 0"})
    assert len(slow.begun) == LAST_ATTEMPTS
    with pytest.raises(RunError, match="--resume"):
        evaluated(broken=LAST_ATTEMPTS)[0].last()


def test_who_waits_gets_the_scores_of_every_version() -> None:
    evaluations, slow, model = evaluated()
    assert evaluations.awaited_evaluation() is None
    model.version = 1
    evaluations.ask()
    slow.begun[0][1].set_result({"test": 1})
    assert evaluations.at_work
    assert evaluations.awaited_evaluation() == Evaluation(1, {"test": 1})
    assert not evaluations.at_work
