from __future__ import annotations

import io

import pytest
from rich.console import Console

from cos2p.cli import spinner
from cos2p.cli.output import OutputMode


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(spinner.time, "monotonic", lambda: now[0])
    return now


def test_nothing_before_two_seconds_then_a_line_every_two(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with spinner.reading(OutputMode()) as notify:
        for _ in range(9):
            notify(0, 2, "a\x1b run")
            clock[0] += 0.5
    out, err = capsys.readouterr()
    assert out == ""
    assert err == 2 * "reading a? run (1 of 2)\n"


@pytest.mark.parametrize("mode", [OutputMode(quiet=True), OutputMode(json=True)])
def test_not_when_nobody_asked(clock: list[float], capsys: pytest.CaptureFixture[str], mode: OutputMode) -> None:
    with spinner.reading(mode) as notify:
        notify(0, 1, "a")
        clock[0] += 60
        notify(0, 1, "a")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("mode", "said"), [(OutputMode(), True), (OutputMode(quiet=True), False)])
def test_work_that_cannot_count_says_what_it_is(mode: OutputMode, said: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True)
    monkeypatch.setattr(spinner, "console", lambda stderr: screen)
    with spinner.busy(mode, "reading the data"):
        pass
    assert isinstance(screen.file, io.StringIO)
    assert ("reading the data" in screen.file.getvalue()) == said
