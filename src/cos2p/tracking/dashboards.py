"""A run's curves in TensorBoard, Weights & Biases and MLflow. Each one is imported when a run asks for it.

The step of a curve is the round. Its relative time is the run's own, virtual in a simulation.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cos2p.errors import MissingExtra, RunError
from cos2p.older_python import tomllib
from cos2p.tracking.event_kinds import Started
from cos2p.tracking.files import explained, read_json, write_json
from cos2p.tracking.loggers import Point

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


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
            # What an earlier process wrote comes again, from the run's own log.
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
