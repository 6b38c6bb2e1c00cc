"""Processor time of a whole tree of processes."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

LOOK = 0.2
"""Seconds between two looks at the tree. What a process does after the last one is lost, if nobody waits for it."""


@dataclass(frozen=True)
class Spent:
    processor: float
    """Seconds, user and system, of the process and all it started."""
    wall: float


class Failed(Exception):
    """The command did not end well; the text says how."""


def run_metered(command: list[str], environment: dict[str, str]) -> Spent:
    """Run to the end. The system's account counts children that were waited for; the looks count the others."""
    seen: dict[tuple[int, float], float] = {}
    with tempfile.TemporaryFile("w+") as errors:
        started = time.monotonic()
        child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=errors)
        while True:
            ended, status, usage = os.wait4(child.pid, os.WNOHANG)
            if ended:
                break
            _look(child.pid, seen)
            time.sleep(LOOK)
        wall = time.monotonic() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            errors.seek(0)
            lines = errors.read().strip().splitlines() or ["it said nothing"]
            raise Failed(f"{Path(command[0]).name} {' '.join(command[1:3])}: {lines[-1][:200]}")
    return Spent(max(usage.ru_utime + usage.ru_stime, sum(seen.values())), wall)


def _look(root: int, seen: dict[tuple[int, float], float]) -> None:
    try:
        tree = [psutil.Process(root), *psutil.Process(root).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in tree:
        try:
            times = process.cpu_times()
            seen[process.pid, process.create_time()] = times.user + times.system
        except psutil.NoSuchProcess:
            continue
