"""Curves for TensorBoard and MLflow: the real libraries write, and are read back."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cos2p.cli.app import app
from cos2p.errors import MissingExtra, RunError
from cos2p.tracking.event_kinds import Event
from cos2p.tracking.events import EventLog
from cos2p.tracking.loggers import Curves, Feed, MlflowLog, Point, TensorBoardLog, logging_metrics
from tests.events import event

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard.*"),
    pytest.mark.filterwarnings("ignore:.*noload.*"),  # between MLflow and SQLAlchemy
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # MLflow keeps its database open
]


def story(rounds: int) -> list[Event]:
    """A run of one device, `pi#1`, a round each: its loss halves, the server's score rises by a tenth."""
    reported = [event("started", devices={"pi#1": {}})]
    for number in range(1, rounds + 1):
        t = 10.0 * number
        report = {"loss": 0.5**number, "local_top1": 0.25, "local_samples": 4}
        reported += [
            event("dispatched", t - 9, client="pi#1", bytes=100),
            event("arrived", t - 1, client="pi#1", bytes=40),
            event("merged", t - 1, client="pi#1", staleness=number - 1, report=report),
            event("aggregated", t, version=number, n_star=1),
            event("evaluated", t, version=number, test=scores(0.1 * number)),
        ]
    return reported


def scores(top1: float) -> dict[str, Any]:
    return {"2": {"top1": top1 / 2, "f1": 0.0}, "10": {"top1": top1, "f1": 0.5}}


def play(feed: Feed, folder: Path, events: list[Event], offset: int | None = None) -> None:
    """As `run` does: the log is written first, then the listener told."""
    path = folder / "events.jsonl"
    written = path.stat().st_size if path.exists() else 0
    with closing(EventLog(path, written if offset is None else offset)) as log:
        for reported in events:
            log.write(reported)
            feed(reported)


def tensorboard_points(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """What TensorBoard's own reader finds, without its mending of doubled steps."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder / "tensorboard"), purge_orphaned_data=False)
    reader.Reload()
    return {
        name: [(event.step, event.wall_time, event.value) for event in reader.Scalars(name)]
        for name in reader.Tags()["scalars"]
    }


def mlflow_run(folder: Path, uri: str) -> tuple[Any, Any]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    return client, client.get_run(json.loads((folder / "mlflow.json").read_text())["run"])


def mlflow_points(folder: Path, uri: str, name: str) -> list[tuple[int, int, float]]:
    client, run = mlflow_run(folder, uri)
    history = client.get_metric_history(run.info.run_id, name)
    return sorted((metric.step, metric.timestamp, metric.value) for metric in history)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = tmp_path / "first"
    run.mkdir()
    (run / "recipe.toml").write_text('name = "first"\n[training]\nlr = 0.5\n', encoding="utf-8")
    return run


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One store for all: MLflow takes seconds to make one."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


# ---------------------------------------------------------------- which figures


def test_a_round_becomes_one_point_of_each_figure() -> None:
    curves = Curves()
    points = [point for reported in story(2) for point in curves(reported)]
    found = {(point.name, point.step): (point.value, point.seconds) for point in points}
    assert len(found) == len(points), "a figure has one value per round"
    assert found["run/updates", 2] == (2.0, 20.0)
    assert found["run/bytes_up", 2] == (80.0, 20.0)
    assert found["run/bytes_down", 1] == (100.0, 10.0)
    assert found["round/staleness", 2] == (1.0, 20.0)
    assert found["clients/pi#1/loss", 2] == (0.25, 20.0)
    assert found["clients/loss", 1] == (0.5, 10.0)
    assert found["server/test/top1", 2] == (0.2, 20.0), "at the deepest exit: 10, not 2"
    assert found["exits/server/test/2", 2] == (0.1, 20.0)


def test_scores_of_clients_are_averaged_by_their_samples() -> None:
    curves = Curves()
    for client, top1, samples in (("a", 1.0, 3), ("b", 0.0, 1)):
        report = {"loss": 1.0, "local_top1": top1, "local_samples": samples}
        curves(event("merged", 1.0, client=client, staleness=0, report=report))
    points = curves(event("aggregated", 2.0, version=1, n_star=0))
    assert Point("clients/top1", 0.75, 1, 2.0) in points


def test_figures_that_are_not_there_make_no_points() -> None:
    curves = Curves()
    curves(event("merged", 1.0, client="a", staleness=0, report={"loss": None}))
    names = {point.name for point in curves(event("aggregated", 2.0, version=1, n_star=0))}
    assert "run/updates" in names
    assert not any(name.startswith("clients/") for name in names)


# ---------------------------------------------------------------- TensorBoard


def test_tensorboard_shows_rounds_and_virtual_time(folder: Path) -> None:
    feed = Feed([TensorBoardLog(folder)], folder)
    play(feed, folder, story(3))
    feed.close("finished")
    found = tensorboard_points(folder)
    assert found["clients/loss"] == [(1, 10.0, 0.5), (2, 20.0, 0.25), (3, 30.0, 0.125)]
    assert [step for step, _, _ in found["server/test/top1"]] == [1, 2, 3]


def test_tensorboard_has_no_point_twice_after_a_resume(folder: Path) -> None:
    events = story(3)
    feed = Feed([TensorBoardLog(folder)], folder)
    play(feed, folder, events[:6])
    checkpoint = (folder / "events.jsonl").stat().st_size  # after round 1; what follows is lost with the process
    play(feed, folder, events[6:11])
    feed.close("failed")
    again = Feed([TensorBoardLog(folder)], folder)
    EventLog(folder / "events.jsonl", checkpoint).close()
    again(event("resumed", 10.0, log=folder / "events.jsonl"))
    play(again, folder, events[6:])
    again.close("finished")
    found = tensorboard_points(folder)
    assert found["clients/loss"] == [(1, 10.0, 0.5), (2, 20.0, 0.25), (3, 30.0, 0.125)]
    assert [value for _, _, value in found["run/bytes_up"]] == [40.0, 80.0, 120.0]
    assert len(list((folder / "tensorboard").iterdir())) == 1


# ---------------------------------------------------------------- MLflow


@pytest.mark.slow
def test_mlflow_has_curves_settings_and_an_end(folder: Path, uri: str) -> None:
    feed = Feed([MlflowLog(folder, uri)], folder)
    play(feed, folder, story(2))
    feed.close("finished")
    assert mlflow_points(folder, uri, "clients/pi_1/loss") == [(1, 10_000, 0.5), (2, 20_000, 0.25)]
    _, run = mlflow_run(folder, uri)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "first"
    assert run.data.params == {"name": "first", "training.lr": "0.5"}


def test_mlflow_goes_on_with_the_same_run_and_has_no_point_twice(folder: Path, uri: str) -> None:
    events = story(3)
    feed = Feed([MlflowLog(folder, uri)], folder)
    play(feed, folder, events[:11])
    feed.close("stopped")
    _, first = mlflow_run(folder, uri)
    assert first.info.status == "KILLED"
    again = Feed([MlflowLog(folder, uri)], folder)
    again(event("resumed", 20.0, log=folder / "events.jsonl"))
    play(again, folder, events[11:])
    again.close("finished")
    _, run = mlflow_run(folder, uri)
    assert run.info.run_id == first.info.run_id
    assert mlflow_points(folder, uri, "clients/loss") == [(1, 10_000, 0.5), (2, 20_000, 0.25), (3, 30_000, 0.125)]


def test_a_server_that_is_away_does_not_stop_the_run_and_gets_everything_later(
    folder: Path, uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = MlflowLog(folder, uri)
    feed = Feed([log], folder)

    def away(*arguments: object, **options: object) -> None:
        raise ConnectionError("connection refused")

    with monkeypatch.context() as broken:
        broken.setattr(log._client, "log_batch", away)
        play(feed, folder, story(2))
        feed.close("finished")
    reported = capsys.readouterr().err
    assert reported.count("connection refused") == 2, "once while it runs, once at the end"
    assert f"cos2p run --resume --out {folder} --mlflow {uri}" in reported
    later = Feed([MlflowLog(folder, uri)], folder)  # the run is over: nothing happens any more
    later.close("finished")
    assert mlflow_points(folder, uri, "clients/loss") == [(1, 10_000, 0.5), (2, 20_000, 0.25)]
    assert mlflow_run(folder, uri)[1].info.status == "FINISHED"


def test_mlflow_phones_nobody(folder: Path, uri: str) -> None:
    MlflowLog(folder, uri)
    from mlflow.telemetry import get_telemetry_client
    from mlflow.telemetry.utils import is_telemetry_disabled

    assert is_telemetry_disabled()
    assert get_telemetry_client() is None


def test_a_place_that_does_not_work_is_named_before_anything_is_trained(folder: Path) -> None:
    impossible = f"sqlite:///{folder / 'recipe.toml' / 'x.db'}"
    with pytest.raises(RunError, match=f"--mlflow {impossible}: "):
        MlflowLog(folder, impossible)


@pytest.mark.parametrize(
    ("module", "options", "hint"),
    [
        ("tensorboard", {"tensorboard": True}, "cos2p[tensorboard]"),
        ("mlflow", {"mlflow": "sqlite://"}, "cos2p[mlflow]"),
    ],
)
def test_a_missing_package_is_named(
    module: str, options: Mapping[str, Any], hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra) as caught, logging_metrics(tmp_path, **options):
        pass
    assert hint in str(caught.value)


# ---------------------------------------------------------------- from the command line


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory, uri: str) -> tuple[Path, str]:
    base = tmp_path_factory.mktemp("logged")
    words = ["run", "quickstart", "--out", str(base / "run"), "--workers", "1", "--tensorboard", "--mlflow", uri, "-q"]
    for change in ("schedule.rounds=2", "training.epochs=1", "data.train_samples=300", "model.depth=2"):
        words += ["--set", change]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.stderr
    return base / "run", uri


def test_a_real_run_ends_with_the_figures_of_its_result(logged: tuple[Path, str]) -> None:
    folder, uri = logged
    result = json.loads((folder / "result.json").read_text())
    found = tensorboard_points(folder)
    assert found["final/test/top1"][0][2] == pytest.approx(result["top1"])
    assert found["run/bytes_down"][-1][2] <= result["bytes_down"]
    assert [step for step, _, _ in found["run/updates"]] == [1, 2]
    assert mlflow_points(folder, uri, "final/test/top1")[0][2] == pytest.approx(result["top1"])
    assert mlflow_run(folder, uri)[1].data.params["training.epochs"] == "1"


def test_a_run_that_is_over_can_be_shown_afterwards(logged: tuple[Path, str]) -> None:
    folder, _ = logged
    before = tensorboard_points(folder)
    for file in (folder / "tensorboard").iterdir():
        file.unlink()
    words = ["run", "--resume", "--out", str(folder), "--tensorboard", "-q"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert tensorboard_points(folder) == before
