from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cos2p.errors import RunError
from cos2p.recipe import Recipe
from cos2p.runtime.simulation import run
from cos2p.tracking.event_kinds import Left
from cos2p.tracking.events import EventLog
from cos2p.view.build import RunSource
from tests.cli.conftest import TINY
from tests.view.diary import Diary, two_rounds


def document(folder: Path) -> dict[str, Any]:
    source = RunSource(folder)
    source.refresh()
    return source.document()


def test_two_rounds_by_hand(tmp_path: Path) -> None:
    found = document(two_rounds().write(tmp_path / "run"))
    header = found["header"]
    assert (header["name"], header["status"], header["ending"], header["kind"]) == (
        "run", "finished", "rounds", "simulation",
    )  # fmt: skip
    assert (header["round"], header["rounds"], header["updates"], header["share"], header["t"]) == (2, 2, 3, 1.0, 25.0)
    assert (header["part"], header["last"], header["best"], header["best_round"]) == ("validation", 0.7, 0.7, 2)
    assert (header["test"], header["n_star"], header["bytes_up"], header["bytes_down"]) == (0.6, 0, 150, 300)
    assert header["clients"] == 0.75  # (0.6·10 + 0.8·30) / 40

    rounds = found["rounds"]
    assert (rounds["version"], rounds["t"], rounds["updates"], rounds["n_star"]) == (
        [1, 2],
        [10.0, 20.0],
        [1, 2],
        [0, 0],
    )
    assert (rounds["loss"], rounds["client_top1"]) == ([2.0, 2.0], [0.4, 0.75])
    assert rounds["ru"] == [1.0, 0.75]  # round 2: a 10 s, b 5 s of its task
    assert header["ru"] == 0.875
    assert rounds["bytes_up"] == [50, 150]

    evaluations = found["evaluations"]
    assert (evaluations["version"], evaluations["t"]) == ([1, 2], [10.0, 20.0])  # when the version was made
    assert (evaluations["validation"]["top1"], evaluations["test"]["top1"]) == ([0.5, 0.7], [0.4, 0.6])
    assert (evaluations["exits"], evaluations["exits_top1"]) == ([1, 2], [[0.25, 0.35], [0.5, 0.7]])

    updates = found["updates"]
    assert (updates["round"], updates["client"], updates["tau"]) == ([0, 1, 1], [0, 1, 0], [0, 1, 0])
    assert (updates["start"], updates["top"]) == ([0, 0, 0], [1, 2, 1])
    assert updates["weight"][0] == 1.0
    assert updates["weight"][2] == pytest.approx((7 / 8 + 7 / 8) / 2)

    a, b = found["devices"]
    assert (a["tasks"], a["updates"], a["staleness"], a["busy"], a["top1"]) == (2, 2, 0.0, 0.8, 0.6)
    assert (b["tasks"], b["updates"], b["staleness"], b["busy"], b["top1"]) == (1, 1, 1.0, 0.6, 0.8)
    assert (a["predicted"], a["memory"], a["measured"]) == (900, 1000, None)


def test_reading_piece_by_piece_gives_the_same(tmp_path: Path) -> None:
    whole = document(two_rounds().write(tmp_path / "a" / "run"))
    text = two_rounds().lines()
    folder = Diary().write(tmp_path / "b" / "run")
    source = RunSource(folder)
    for at in range(0, len(text) + 97, 97):
        (folder / "events.jsonl").write_text(text[:at])
        source.refresh()
        source.document()
    assert source.document() == whole
    assert not source.refresh()


def test_a_resumed_run_is_told_once(tmp_path: Path) -> None:
    folder = two_rounds().write(tmp_path / "run")
    source = RunSource(folder)
    source.refresh()
    cut = Diary()
    cut.events = two_rounds().events[:8]
    cut.write(folder)
    assert source.refresh()
    assert source.document()["header"]["updates"] == 1
    two_rounds().write(folder)
    assert source.refresh()
    assert source.document()["header"]["updates"] == 3


def test_a_folder_that_is_not_there_yet_waits(tmp_path: Path) -> None:
    source = RunSource(tmp_path / "later")
    source.refresh()
    found = source.document()
    assert (found["header"]["status"], found["devices"], found["coverage"]) == ("waiting", [], None)
    Diary().started("a").joined(0, "a").write(tmp_path / "later")
    assert source.refresh()
    assert source.document()["header"]["status"] == "stopped"


def test_a_run_is_running_while_its_log_is_open(tmp_path: Path) -> None:
    folder = Diary().started("a").joined(0, "a").write(tmp_path / "run")
    source = RunSource(folder)
    path = folder / "events.jsonl"
    with closing(EventLog(path, path.stat().st_size)) as log:
        source.refresh()
        assert source.document()["header"]["status"] == "running"
        log.write(Left(t=1.0, client="a"))  # looking does not hinder it
    assert source.refresh()
    assert source.document()["header"]["status"] == "stopped"


def test_nobody_left_is_a_failure(tmp_path: Path) -> None:
    diary = Diary().started("a").finished(3.0, 0, "no device is left that could answer")
    assert document(diary.write(tmp_path))["header"]["status"] == "failed"


def test_estimate_from_the_pace_of_the_last_half(tmp_path: Path) -> None:
    from cos2p.terminal.progress import Pace

    pace = Pace()
    for share, at in ((0.1, 0.0), (0.2, 50.0), (0.3, 60.0), (0.4, 70.0)):
        pace.note(share, at)
    assert pace.left() == pytest.approx(60.0)  # 10 s for each tenth, six to go
    pace.note(0.1, 80.0)  # resumed from an earlier checkpoint
    assert pace.left() is None


def test_refused_and_failed_with_their_reasons(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>\u2028" + 1000 * "x"
    diary = Diary().started("a").joined(0, "a").task(0, "a#0").arrived(10, "a#0")
    diary.add("refused", 10, client="a", task="a#0", reason=hostile)
    diary.add("unfit", 11, client="stranger<b>", reason="no data")
    diary.task(12, "a#1").add("failed", 13, client="a", task="a#1", reason="loss")
    found = document(diary.write(tmp_path))
    troubles = found["troubles"]
    assert (troubles["total"], troubles["kind"]) == (3, ["refused", "unfit", "failed"])
    assert (troubles["client"], troubles["name"]) == ([0, -1, 0], ["", "stranger<b>", ""])
    assert troubles["reason"][0].startswith("<script>alert(1)</script>")
    assert len(troubles["reason"][0]) == 600
    assert (found["header"]["refused"], found["header"]["failed"], found["devices"][0]["refused"]) == (1, 1, 1)


@pytest.mark.parametrize("report", [{}, {"loss": "high"}, {"loss": None, "local_top1": True}, {"loss": 1e300}])
def test_what_a_client_reports_can_be_anything(tmp_path: Path, report: dict[str, object]) -> None:
    diary = Diary().started("a").joined(0, "a").task(0, "a#0").answered(10, "a#0", **report)
    assert document(diary.aggregated(10, 1, ["a"]).write(tmp_path))["rounds"]["loss"] == [None]


def test_an_event_that_is_not_one_of_ours_is_named(tmp_path: Path) -> None:
    folder = Diary().started("a").add("merged", 1.0, client="a").write(tmp_path)
    with pytest.raises(RunError, match=r"'merged'.*damaged"):
        document(folder)


def test_a_real_run_agrees_with_its_own_figures(tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(TINY)
    result = run(Recipe.load(recipe), tmp_path / "run")
    found = document(tmp_path / "run")
    header = found["header"]
    assert (header["round"], header["updates"], header["n_star"]) == (
        result["rounds"], result["updates"], result["n_star"],
    )  # fmt: skip
    assert (header["bytes_up"], header["bytes_down"]) == (result["bytes_up"], result["bytes_down"])
    assert header["test"] == pytest.approx(result["top1"], abs=1e-4)
    assert sum(ru for ru in found["rounds"]["ru"] if ru) / 2 == pytest.approx(result["ru"], abs=1e-3)
    assert found["coverage"] is not None
    for device in found["devices"]:
        own = result["devices"][device["name"]]
        assert (device["predicted"], device["updates"]) == (own["peak_memory"], own["updates"])
        assert device["busy"] == pytest.approx(own["busy_seconds"] / result["virtual_seconds"], abs=1e-3)
    assert min(map(min, found["coverage"]["heads"])) >= result["n_star"]
    log = tmp_path / "run" / "events.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(RunError, match=r"events\.jsonl ends before its run did"):
        document(tmp_path / "run")
