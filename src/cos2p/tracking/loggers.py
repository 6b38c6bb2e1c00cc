"""A run's figures for other people's dashboards: the same events as in the run folder, as curves over rounds.

    events ──► Curves (which figure, which round) ──► MetricLog: TensorBoard, MLflow, Weights & Biases

Every figure has one value per round and a name (`server/test/top1`, `clients/pi-1/loss`), its time is the run's own:
virtual seconds in a simulation. Whatever is shown can be made anew from `events.jsonl`, so a resumed run begins by
replaying it, and no point is there twice.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cos2p.errors import MissingExtra, RunError
from cos2p.older_python import tomllib
from cos2p.tracking.event_kinds import Aggregated, Evaluated, Event, Finished, Resumed, Started
from cos2p.tracking.events import read_events
from cos2p.tracking.figure_parts import deepest, number
from cos2p.tracking.figures import RunFigures
from cos2p.tracking.files import explained, read_json, write_json

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

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
        logs.append(TensorBoardLog(folder))
    if mlflow:
        logs.append(MlflowLog(folder, mlflow))
    if wandb:
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


# ---------------------------------------------------------------- where they go; imported when a run asks for them


class TensorBoardLog:
    """RUN/tensorboard/: one file of events, for `tensorboard --logdir RUN`."""

    def __init__(self, folder: Path) -> None:
        try:
            import tensorboard as _  # noqa: F401  before the run begins, not after
        except ImportError:
            raise MissingExtra("--tensorboard needs TensorBoard: pip install 'cos2p[tensorboard]'") from None
        self.folder = folder / "tensorboard"
        self._writer: SummaryWriter | None = None

    def begin(self, started: Started) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._end()
        with explained(self.folder):
            # The points of an earlier process come again, from the run's own log.
            for earlier in self.folder.glob("events.out.tfevents.*"):
                earlier.unlink()
            self._writer = SummaryWriter(str(self.folder), flush_secs=10)

    def add(self, points: Iterable[Point]) -> None:
        assert self._writer is not None
        with explained(self.folder):
            for point in points:
                self._writer.add_scalar(point.name, point.value, point.step, walltime=point.seconds)

    def close(self, outcome: str) -> None:
        self._end()

    def _end(self) -> None:
        if self._writer is not None:
            with explained(self.folder):
                self._writer.close()
            self._writer = None


class WandbLog:
    """A run of the project, named like its folder; the run's own seconds are the curve `run/seconds`.

    With WANDB_MODE=offline everything stays in RUN/wandb.
    """

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


EXPERIMENT = "cos2p"
_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # nothing is sent to anybody but the server asked for
    "DO_NOT_TRACK": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""Left alone, MLflow tries for minutes, and the training would wait for it."""

_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_METRICS, _PARAMS = 1000, 100
"""The most that MLflow takes at once."""


class MlflowLog:
    """One MLflow run for a run folder, at a tracking server or in a local file (sqlite:///mlflow.db).

    A tracking server that is away for a while does not stop a training: points wait for it. After the run
    `cos2p run --resume --out RUN --mlflow URI` sends those points of `events.jsonl` that MLflow does not have.
    """

    def __init__(self, folder: Path, uri: str) -> None:
        os.environ.update(_QUIET)
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        try:
            from mlflow import MlflowClient
        except ImportError:
            raise MissingExtra("--mlflow needs MLflow: pip install 'cos2p[mlflow]'") from None
        self.folder, self.uri = folder, uri
        self._waiting: list[Point] = []
        self._sent: dict[str, set[int]] = {}
        """Steps MLflow has, by name; loaded when a name is first met."""
        self._started: Started | None = None
        self._run = ""
        self._warned = False
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # between MLflow and its database layer
                self._client = MlflowClient(tracking_uri=uri)
                self._experiment = self._find_experiment()
        except Exception as error:  # it has many kinds: its own, the database's, the network's
            raise RunError(f"--mlflow {uri}: {_one_line(error)}") from None

    def _find_experiment(self) -> str:
        known = self._client.get_experiment_by_name(EXPERIMENT)
        return str(known.experiment_id if known else self._client.create_experiment(EXPERIMENT))

    # ------------------------------------------------------------ MetricLog

    def begin(self, started: Started) -> None:
        self._started, self._run, self._waiting, self._sent = started, "", [], {}
        self._attempt(self._open)

    def add(self, points: Iterable[Point]) -> None:
        self._waiting += points
        self._attempt(self._send)

    def close(self, outcome: str) -> None:
        self._warned = False
        self._attempt(self._send)
        if self._run and not self._waiting:
            self._attempt(lambda: self._client.set_terminated(self._run, _STATUS[outcome]))

    # ------------------------------------------------------------ what may fail

    def _open(self) -> None:
        """Go on with the folder's MLflow run, or make one."""
        file = self.folder / "mlflow.json"
        if file.exists():
            known = read_json(file)
            if known.get("uri") == self.uri:
                self._client.update_run(known["run"], status="RUNNING")
                self._run = known["run"]
                return
        tags = {"cos2p.folder": self.folder.name, "cos2p.method": self._started.method if self._started else ""}
        run = self._client.create_run(self._experiment, run_name=self.folder.name, tags=tags).info.run_id
        write_json(file, {"uri": self.uri, "run": run})
        self._run = run
        self._log_recipe(run)

    def _log_recipe(self, run: str) -> None:
        from mlflow.entities import Param

        values = tomllib.loads((self.folder / "recipe.toml").read_text(encoding="utf-8"))
        for some in _batches((Param(name, value[:500]) for name, value in _flat(values)), _PARAMS):
            self._client.log_batch(run, params=some)

    def _send(self) -> None:
        from mlflow.entities import Metric

        if not self._run:
            self._open()
        for some in _batches([p for p in self._waiting if p.step not in self._steps(p.name)], _METRICS):
            metrics = [Metric(_key(p.name), p.value, round(1000 * p.seconds), p.step) for p in some]
            self._client.log_batch(self._run, metrics=metrics)
            for point in some:
                self._sent[point.name].add(point.step)
        self._waiting = []

    def _steps(self, name: str) -> set[int]:
        if name not in self._sent:
            history = self._client.get_metric_history(self._run, _key(name))
            self._sent[name] = {metric.step for metric in history}
        return self._sent[name]

    def _attempt(self, act: Any) -> None:
        try:
            act()
        except Exception as error:
            if not self._warned:
                again = f"cos2p run --resume --out {self.folder} --mlflow {self.uri}"
                print(f"mlflow: {_one_line(error)}; the run goes on. Send what is missing by  {again}", file=sys.stderr)
            self._warned = True


def _key(name: str) -> str:
    """A metric's name as MLflow allows it.

    >>> _key("clients/pi#1/loss")
    'clients/pi_1/loss'
    """
    return re.sub(r"[^\w\-. :/]", "_", name)[:250]


def _flat(values: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """
    >>> list(_flat({"fleet": {"devices": [{"rate": 0.5}]}, "seed": 0}))
    [('fleet.devices.0.rate', '0.5'), ('seed', '0')]
    """
    if isinstance(values, dict | list) and values:
        for key, value in values.items() if isinstance(values, dict) else enumerate(values):
            yield from _flat(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, str(values)


def _batches(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
