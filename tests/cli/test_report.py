"""`cos2p report`: one file, one line; every mistake one line and an exit code."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from cos2p.cli.app import app
from tests.view.diary import two_rounds
from tests.view.test_study import write_study


def cli(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["report", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_runs_and_studies_become_one_file(tmp_path: Path) -> None:
    run, study = two_rounds().write(tmp_path / "run"), write_study(tmp_path / "study", {"a": {}})
    out = tmp_path / "report.html"
    code, said, err = cli(run, study, "-o", out)
    assert (code, err) == (0, "")
    assert said.startswith(f"{out} (")
    assert out.read_text().startswith("<!doctype html>")
    assert cli(run, "-o", out)[0] == 0  # an earlier report is replaced


def test_for_programs(tmp_path: Path) -> None:
    run, out = two_rounds().write(tmp_path / "run"), tmp_path / "report.html"
    code, said, _ = cli(run, "-o", out, "--json")
    reported = json.loads(said)
    assert (code, reported["kind"], reported["out"], reported["bytes"]) == (0, "report", str(out), out.stat().st_size)


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    run = two_rounds().write(tmp_path / "run")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "events.jsonl").write_text("nonsense\n")
    for arguments, words in (
        ((tmp_path / "nowhere",), "there is no such folder"),
        ((tmp_path,), "neither a run"),
        ((run / "events.jsonl",), "is a file"),
        ((tmp_path / "damaged",), "line 1 is not JSON"),
        ((run, "-o", tmp_path), "is a folder"),
        ((run, "-o", tmp_path / "a" / "b.html"), "there is no folder"),
    ):
        code, out, err = cli(*arguments)
        assert (code, out, err.count("\n")) == (7, "", 1), err
        assert err.startswith("error: ")
        assert words in err
    assert not (tmp_path / "report.html").exists()
    assert cli()[0] == 2
