"""`cos2p watch` as a process: prints its address, answers there, ends cleanly."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cos2p.cli.app import app
from tests.view.diary import two_rounds


def cli(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["watch", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


@contextmanager
def watching(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", "from cos2p.cli import main; main()", "watch", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_address_and_ends_cleanly(tmp_path: Path, ending: signal.Signals) -> None:
    with watching(two_rounds().write(tmp_path / "run"), "--no-browser", "--json") as process:
        assert process.stdout is not None
        reported = json.loads(process.stdout.readline())
        assert reported["url"].startswith("http://127.0.0.1:")
        with urllib.request.urlopen(reported["url"] + "view.json", timeout=120) as answer:
            assert json.load(answer)["runs"][0]["header"]["updates"] == 3
        process.send_signal(ending)
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out, err) == (0, "", "")


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    for arguments, code in (((tmp_path,), 7), ((tmp_path / "notes.txt",), 7), ((tmp_path / "later", "--host", "no.such.invalid"), 7)):  # fmt: skip  # noqa: E501
        found, out, err = cli(*arguments)
        assert (found, out, err.count("\n")) == (code, "", 1), err
        assert err.startswith("error: ")
    assert cli(tmp_path / "later", "--port", "70000")[0] == 2
    assert cli()[0] == 2
