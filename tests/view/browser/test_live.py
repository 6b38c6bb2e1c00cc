"""The live page: `cos2p watch` next to a run that goes on. What one looks at stays where it is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.view.browser.watched import Watched
from tests.view.diary import Diary, two_rounds

pytestmark = pytest.mark.browser
Visit = Callable[..., Watched]

TASKS = "Number(document.querySelector('#fleet .lanes').dataset.tasks)"
TINY = """
name = "tiny"
model = { size = "vit-nano", depth = 2 }
data = { source = "digits", train_samples = 120, test_samples = 50, validation_fraction = 0.2 }
fleet.devices = [{ preset = "laptop", count = 2, rate = 0.25, batch = 16, flops = 1e7 }]
training = { epochs = 1 }
schedule = { updates = 12, t_clk = 1.0 }
method = { name = "cos2p", masks = { rounds = 1, epochs = 1 } }
run = { workers = 1 }
"""
FLEET = "cos2p.page.panels.fleet.chart.state()"


@pytest.fixture
def watch() -> Iterator[Callable[[Path], tuple[str, subprocess.Popen[str]]]]:
    """Start the real `cos2p watch`; gives its address and process."""
    started: list[subprocess.Popen[str]] = []

    def go(run: Path) -> tuple[str, subprocess.Popen[str]]:
        command = [sys.executable, "-m", "cos2p", "watch", str(run), "--json", "--no-browser"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        return json.loads(process.stdout.readline())["url"], process

    yield go
    for process in started:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def split(diary: Diary, at: int) -> tuple[Diary, Diary]:
    first, rest = Diary(), Diary()
    first.events, rest.events = diary.events[:at], diary.events[at:]
    return first, rest


def test_the_page_follows_the_run_and_says_when_it_is_alone(
    watch: Callable[[Path], tuple[str, Any]], visit: Visit, tmp_path: Path
) -> None:
    """The log grows under its eyes: two tasks of a run at first, then the rest."""
    run = tmp_path / "run"
    first, rest = split(two_rounds(), 7)
    first.write(run)
    url, process = watch(run)
    seen = visit(url, quiet=False)
    assert seen.ask(TASKS) == 2

    seen.page.locator("#fleet canvas").first.focus()
    for key in ("ArrowRight", "ArrowDown", "+", "+"):
        seen.page.keyboard.press(key)
    seen.page.get_by_role("button", name="Table of Accuracy").click()
    seen.page.locator("#fleet canvas").first.focus()
    before = seen.ask(FLEET)
    assert before["selected"] == {"lane": 1, "task": 0}
    assert before["zoomed"]

    rest.write(run, mode="a")
    seen.until(f"{TASKS} === 3")
    after = seen.ask(FLEET)
    assert after["selected"] == before["selected"]
    assert after["zoomed"]
    span = before["range"][1] - before["range"][0]
    assert after["range"][1] - after["range"][0] == pytest.approx(span)
    assert seen.ask("document.activeElement === document.querySelector('#fleet canvas')")
    assert seen.page.locator("#curves table").count() == 1  # still open
    assert seen.page.locator(".pill").text_content() == "Finished"
    assert "The run has ended" in (seen.page.locator(".banner").text_content() or "")
    assert seen.complaints == []

    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)
    seen.until("document.querySelector('.banner').textContent.startsWith('No connection')")
    assert seen.page.locator(".pill").text_content() == "No connection"
    assert seen.ask(TASKS) == 3  # the last state stays
    assert {request.split("?")[0] for request in seen.requests} <= {url, f"{url}view.json", "data:,"}


def test_a_real_run_is_seen_while_it_goes_on(
    watch: Callable[[Path], tuple[str, Any]], visit: Visit, tmp_path: Path
) -> None:
    """`cos2p run` writes, `cos2p watch` shows: rounds close on the page before the run is over."""
    run = tmp_path / "run"
    url, _ = watch(run)  # before there is any run
    seen = visit(url)
    assert seen.page.locator(".pill").text_content() == "Waiting to start"
    (tmp_path / "tiny.toml").write_text(TINY)
    command = [sys.executable, "-m", "cos2p", "run", str(tmp_path / "tiny.toml"), "--out", str(run), "-q"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
    try:
        seen.until("document.querySelector('.pill').textContent === 'Running'", seconds=120)
        seen.until("document.querySelector('.pill').textContent === 'Finished'", seconds=120)
    finally:
        said, _ = running.communicate(timeout=60)
    assert running.returncode == 0, said
    dispatched = sum('"kind":"dispatched"' in line for line in (run / "events.jsonl").read_text().splitlines())
    seen.until(f"{TASKS} === {dispatched}")
    assert seen.complaints == []
