"""`cos2p fleet join` as its owner sees it: what it says from the first connection to the lost one, and what it takes of
the memory. About a minute on two idle cores."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from cos2p.fleet.device.owner import DeviceFile
from tests.fleet.lab import PARTS, running_lab, slow, small_recipe

pytestmark = [pytest.mark.fleet, pytest.mark.slow]

IDLE, WAITING = 200e6, 450e6
"""Most bytes of all processes of a device: resident while it waits for a run; in a run, while it waits for its next
task, with shared pages divided among those that share them."""


def resident(processes: list[psutil.Process]) -> dict[str, tuple[int, int]]:
    """Bytes by part: resident, and with shared pages divided among those that share them."""
    found = {}
    for process in processes:
        with suppress(psutil.Error):
            words = process.cmdline()
            part = next((part for part, module in PARTS.items() if module in words), "join")
            memory = process.memory_full_info()
            found[part] = (memory.rss, memory.pss)
    return found


def test_it_says_what_it_does_and_takes_little(tmp_path: Path) -> None:
    recipe = small_recipe(2, rounds=8, schedule__mu=1.0)
    with running_lab(tmp_path, recipe, {"dev-2": slow(6.0)}, absent=("dev-1",)) as lab:
        own = lab.machine("dev-1")
        said = tmp_path / "join.log"
        command = [sys.executable, "-m", "cos2p", "fleet", "join", str(own.kit.folder), "--trust-paths"]
        with said.open("wb") as log:
            join = subprocess.Popen([*command, "--threads", "1"], stdout=log, stderr=log)
        try:
            lab.wait_for(lambda: "connected; waiting for a run" in said.read_text())
            parts = resident([psutil.Process(join.pid), *own.processes()])
            assert set(parts) == {"join", "client"}
            assert sum(size for size, _ in parts.values()) <= IDLE, parts
            lab.start_run()
            lab.wait_for(lambda: "task 2: trained in" in said.read_text())  # and now dev-2 is waited for
            parts = resident([psutil.Process(join.pid), *own.processes()])
            assert set(parts) == {"join", "client", "client job", "training"}
            assert sum(fair for _, fair in parts.values()) <= WAITING, parts
            lab.end_run()
            lab.wait_for(lambda: "; waiting for a run" in said.read_text().splitlines()[-1])
            lab.fleet.server.kill()
            lab.wait_for(lambda: "disconnected since" in said.read_text())
        finally:
            join.send_signal(signal.SIGINT)
            join.wait()
    lines = [line.partition("dev-1: ")[2].partition(": ")[2] for line in said.read_text().splitlines()]
    assert "loading the data" in lines
    assert any(line.startswith("takes part with ") and line.endswith("; waiting for a task") for line in lines)
    assert any(line.startswith("task 1: training (") for line in lines)
    assert any(line.startswith("task 1: trained in ") and line.endswith("; waiting") for line in lines)


def test_a_run_in_which_no_device_can_take_part_is_not_called_completed(tmp_path: Path) -> None:
    with running_lab(tmp_path, small_recipe(1, rounds=1), {"dev-1": DeviceFile(threads=1, memory=200_000)}) as lab:
        lab.start_run()
        with pytest.raises(AssertionError, match="no device is able to take part"):
            lab.finish()
        said = ""
        for _ in range(30):
            said = lab.command("fleet", "status", str(lab.fleet.admin.folder))
            if "FINISHED:ABORTED" in said:
                break
            time.sleep(2)
        assert "FINISHED:ABORTED" in said
