"""A process whose parent was killed ends too."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil

CHILD = """
import time
from cos2p.processes.children import die_with_parent
die_with_parent()
print("up", flush=True)
time.sleep(60)
"""

PARENT = f"""
import subprocess, sys, time
process = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE)
process.stdout.readline()
print(process.pid, flush=True)
time.sleep(60)
"""


def test_an_orphan_ends() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    assert child.is_running()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 30
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
