"""MLflow: one MLflow run for a run folder, at a tracking server or in a local file (sqlite:///mlflow.db).

A tracking server that is away for a while does not stop a training: points wait for it. Those still waiting at the end
are sent by `cos2p run --resume --out RUN --mlflow URI`, which tells MLflow what of `events.jsonl` it does not have.
"""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from cos2p.errors import MissingExtra, RunError
from cos2p.older_python import tomllib
from cos2p.tracking.event_kinds import Started
from cos2p.tracking.files import write_atomic
from cos2p.tracking.loggers import Point

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
    """The step is the round; MLflow's relative time is the run's own, virtual in a simulation."""

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
        self._told = False
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # between MLflow and its database layer
                self._client = MlflowClient(tracking_uri=uri)
                self._experiment = self._find_experiment()
        except Exception as error:  # it has many kinds: its own, the database's, the network's
            raise RunError(f"--mlflow {uri}: {_short(error)}") from None

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
        self._told = False
        self._attempt(self._send)
        if self._run and not self._waiting:
            self._attempt(lambda: self._client.set_terminated(self._run, _STATUS[outcome]))

    # ------------------------------------------------------------ what may fail

    def _open(self) -> None:
        """Go on with the folder's MLflow run, or make one."""
        file = self.folder / "mlflow.json"
        if file.exists():
            known = json.loads(file.read_text(encoding="utf-8"))
            if known.get("uri") == self.uri:
                self._client.update_run(known["run"], status="RUNNING")
                self._run = known["run"]
                return
        tags = {"cos2p.folder": self.folder.name, "cos2p.method": self._started.method if self._started else ""}
        run = self._client.create_run(self._experiment, run_name=self.folder.name, tags=tags).info.run_id
        write_atomic(file, (json.dumps({"uri": self.uri, "run": run}) + "\n").encode())
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
            if not self._told:
                again = f"cos2p run --resume --out {self.folder} --mlflow {self.uri}"
                print(f"mlflow: {_short(error)}; the run goes on. Send what is missing by  {again}", file=sys.stderr)
            self._told = True


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


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
