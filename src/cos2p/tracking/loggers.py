"""A run's figures for other people's dashboards: the same events as in the run folder, as curves over rounds.

    events ──► Curves (which figure, which round) ──► MetricLog: TensorBoard, MLflow

Every figure has one value per round and a name (`server/test/top1`, `clients/pi-1/loss`), its time is the run's own:
virtual seconds in a simulation. Whatever is shown can be made anew from `events.jsonl`, so a resumed run begins by
replaying it, and no point is there twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cos2p.tracking.events import read_events

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

    def begin(self, facts: Mapping[str, Any]) -> None: ...
    def add(self, points: Iterable[Point]) -> None: ...
    def close(self, outcome: str) -> None:
        """The end, for now: `finished`, `stopped` (it can be resumed) or `failed`."""


class Curves:
    """Turns events into points. Knows what the round so far has seen, nothing else."""

    def __init__(self) -> None:
        self.version = 0
        self.merged = 0
        self.bytes = {"up": 0, "down": 0}
        self._reports: dict[str, Mapping[str, float]] = {}
        """Of this round, by client; its last one if it reported twice."""
        self._staleness: list[int] = []
        self._refused = 0

    def __call__(self, kind: str, fields: Mapping[str, Any]) -> list[Point]:
        handler = getattr(self, f"_on_{kind}", None)
        if handler is None:
            return []
        found: Iterable[tuple[str, float | None]] = handler(fields) or ()
        step = int(fields.get("version", self.version))
        return [Point(name, float(value), step, float(fields["t"])) for name, value in found if value is not None]

    def _on_dispatched(self, fields: Mapping[str, Any]) -> None:
        self.bytes["down"] += fields["bytes"]

    def _on_arrived(self, fields: Mapping[str, Any]) -> None:
        self.bytes["up"] += fields["bytes"]

    def _on_refused(self, fields: Mapping[str, Any]) -> None:
        self._refused += 1

    def _on_merged(self, fields: Mapping[str, Any]) -> None:
        self.merged += 1
        self._reports[fields["client"]] = fields["report"]
        self._staleness.append(fields["staleness"])

    def _on_aggregated(self, fields: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
        self.version = fields["version"]
        yield "run/updates", self.merged
        yield "run/virtual_seconds", fields["t"]
        yield "run/bytes_up", self.bytes["up"]
        yield "run/bytes_down", self.bytes["down"]
        yield "run/refused", self._refused
        yield "round/n_star", fields["n_star"]
        if self._staleness:
            yield "round/staleness", sum(self._staleness) / len(self._staleness)
        for name, report in self._reports.items():
            for figure in ("loss", "mask_loss", "local_top1"):
                yield f"clients/{name}/{figure}", report.get(figure)
        yield from self._client_means()
        self._reports, self._staleness = {}, []

    def _client_means(self) -> Iterator[tuple[str, float]]:
        """Over those who reported in this round: the loss plainly, the score by the samples behind it."""
        losses = [report["loss"] for report in self._reports.values() if report.get("loss") is not None]
        if losses:
            yield "clients/loss", sum(losses) / len(losses)
        scored = [r for r in self._reports.values() if r.get("local_samples") and r.get("local_top1") is not None]
        if scored:
            samples = sum(report["local_samples"] for report in scored)
            yield "clients/top1", sum(r["local_top1"] * r["local_samples"] for r in scored) / samples

    def _on_evaluated(self, fields: Mapping[str, Any], head: str = "server") -> Iterator[tuple[str, float | None]]:
        for part in ("validation", "test"):
            by_exit = fields.get(part) or {}
            if by_exit:
                for figure, value in by_exit[max(by_exit, key=int)].items():
                    yield f"{head}/{part}/{figure}", value
                for depth, scores in by_exit.items():
                    yield f"exits/{head}/{part}/{depth}", scores["top1"]

    def _on_finished(self, fields: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
        # On the whole test set, perhaps of a version that was scored on a part of it before: a name of its own.
        return self._on_evaluated(fields, head="final")


class Feed:
    """A run's listener that feeds metric logs."""

    def __init__(self, logs: Iterable[MetricLog], folder: Path) -> None:
        self._logs, self._events = tuple(logs), folder / "events.jsonl"
        self._curves: Curves | None = None

    def __call__(self, kind: str, fields: Mapping[str, Any]) -> None:
        if kind in ("started", "resumed"):
            self._begin(fields)
            if kind == "resumed":  # the run has cut its log back to the checkpoint by now
                self._replay()
        elif self._curves is not None:
            self._add(self._curves(kind, fields))

    def _begin(self, facts: Mapping[str, Any]) -> None:
        self._curves = Curves()
        for log in self._logs:
            log.begin(facts)

    def _replay(self) -> None:
        assert self._curves is not None
        points: list[Point] = []
        for event in read_events(self._events):
            points += self._curves(event["kind"], event)
        self._add(points)

    def _add(self, points: list[Point]) -> None:
        if points:
            for log in self._logs:
                log.add(points)

    def close(self, outcome: str) -> None:
        """A run that was over before it was followed is shown from its log."""
        if outcome == "finished" and self._curves is None and self._events.exists():
            self._begin(next(read_events(self._events), {}))
            self._replay()
        if self._curves is not None:
            for log in self._logs:
                log.close(outcome)


@contextmanager
def logging_metrics(folder: Path, tensorboard: bool = False, mlflow: str = "") -> Iterator[Feed | None]:
    """A listener for `run` that writes the logs asked for; None if there are none."""
    logs: list[MetricLog] = []
    if tensorboard:
        from cos2p.tracking.loggers_tensorboard import TensorBoardLog

        logs.append(TensorBoardLog(folder))
    if mlflow:
        from cos2p.tracking.loggers_mlflow import MlflowLog

        logs.append(MlflowLog(folder, mlflow))
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
