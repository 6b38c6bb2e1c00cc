"""A run's figures for other people's dashboards: the same events as in the run folder, as curves over rounds.

    events ──► Curves (which figure, which round) ──► MetricLog: TensorBoard, MLflow

Every figure has one value per round and a name (`server/test/top1`, `clients/pi-1/loss`), its time is the run's own:
virtual seconds in a simulation. Whatever is shown can be made anew from `events.jsonl`, so a resumed run begins by
replaying it, and no point is there twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cos2p.tracking.event_kinds import Aggregated, Evaluated, Event, Finished, Resumed, Started
from cos2p.tracking.events import read_events
from cos2p.tracking.figure_parts import deepest, number
from cos2p.tracking.figures import RunFigures

STOPPED = 130
"""Exit code of a run that the user stopped and that can be resumed."""


@dataclass(frozen=True)
class Point:
    name: str
    value: float
    step: int
    """The version of the model: aggregations so far."""
    seconds: float
    """Since the run began, in its own time."""


class MetricLog(Protocol):
    """Where curves go. `begin` is called when the run begins, and again whenever it goes on from a checkpoint: points
    that follow may have been given before and must not be there twice."""

    def begin(self, started: Started) -> None: ...
    def add(self, points: Iterable[Point]) -> None: ...
    def close(self, outcome: str) -> None:
        """The end, for now: `finished`, `stopped` (it can be resumed) or `failed`."""


class Curves:
    """Turns events into points, from the figures that they add up to."""

    def __init__(self) -> None:
        self._figures = RunFigures()

    def __call__(self, event: Event) -> list[Point]:
        self._figures(event)
        found: Iterable[tuple[str, float | None]] = ()
        if isinstance(event, Aggregated):
            found = self._round()
        elif isinstance(event, Evaluated):
            found = _scores(event, "server")
        elif isinstance(event, Finished):
            # On the whole test set, perhaps of a version that was scored on a part of it before: a name of its own.
            found = _scores(event, "final")
        else:
            return []
        return [Point(name, float(value), event.version, event.t) for name, value in found if value is not None]

    def _round(self) -> Iterator[tuple[str, float | None]]:
        run, closed = self._figures, self._figures.last_round
        assert closed is not None
        yield "run/updates", run.merged
        yield "run/virtual_seconds", closed.event.t
        yield "run/bytes_up", run.total("bytes_up")
        yield "run/bytes_down", run.total("bytes_down")
        yield "run/refused", run.refused
        yield "round/n_star", closed.event.n_star
        yield "round/staleness", closed.staleness
        for name, report in closed.reports.items():
            for figure in ("loss", "mask_loss", "local_top1"):
                yield f"clients/{name}/{figure}", number(report.get(figure))
        yield "clients/loss", closed.loss
        yield "clients/top1", closed.client_top1


def _scores(event: Evaluated | Finished, head: str) -> Iterator[tuple[str, float | None]]:
    for part, by_exit in (("validation", event.validation), ("test", event.test)):
        for figure, value in deepest(by_exit).items():
            yield f"{head}/{part}/{figure}", value
        for depth, scores in (by_exit or {}).items():
            yield f"exits/{head}/{part}/{depth}", scores["top1"]


class Feed:
    """A run's listener that feeds metric logs."""

    def __init__(self, logs: Iterable[MetricLog], folder: Path) -> None:
        self._logs, self._events = tuple(logs), folder / "events.jsonl"
        self._curves: Curves | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self._begin(event)
            if isinstance(event, Resumed):  # the run has cut its log back to the checkpoint by now
                self._replay()
        elif self._curves is not None:
            self._add(self._curves(event))

    def _begin(self, started: Started) -> None:
        self._curves = Curves()
        for log in self._logs:
            log.begin(started)

    def _replay(self) -> None:
        assert self._curves is not None
        points: list[Point] = []
        for event in read_events(self._events):
            points += self._curves(event)
        self._add(points)

    def _add(self, points: list[Point]) -> None:
        if points:
            for log in self._logs:
                log.add(points)

    def close(self, outcome: str) -> None:
        """A run that was over before it was followed is shown from its log."""
        if outcome == "finished" and self._curves is None and self._events.exists():
            first = next(read_events(self._events), None)
            if isinstance(first, Started):
                self._begin(first)
                self._replay()
        if self._curves is not None:
            for log in self._logs:
                log.close(outcome)


@contextmanager
def logging_metrics(
    folder: Path, tensorboard: bool = False, mlflow: str = "", wandb: str = ""
) -> Iterator[Feed | None]:
    """A listener for `run` that writes the logs asked for; None if there are none."""
    logs: list[MetricLog] = []
    if tensorboard:
        from cos2p.tracking.dashboards import TensorBoardLog

        logs.append(TensorBoardLog(folder))
    if mlflow:
        from cos2p.tracking.dashboards import MlflowLog

        logs.append(MlflowLog(folder, mlflow))
    if wandb:
        from cos2p.tracking.dashboards import WandbLog

        logs.append(WandbLog(folder, wandb))
    if not logs:
        yield None
        return
    feed = Feed(logs, folder)
    try:
        yield feed
    except BaseException as error:
        by_user = isinstance(error, KeyboardInterrupt) or getattr(error, "exit_code", None) == STOPPED
        feed.close("stopped" if by_user else "failed")
        raise
    feed.close("finished")
