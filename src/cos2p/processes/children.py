"""Child processes: their environment and memory, Ctrl-C, the death of a parent, and how a child ended."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import parent_process, resource_tracker, spawn
from pathlib import Path
from types import FrameType

LOOK_SECONDS = 0.5
ORPHANED = 3
"""The exit code of a process that ended because its parent had ended."""
_starting = threading.Lock()


@contextmanager
def deaf_children() -> Iterator[None]:
    """Processes that start inside the block ignore Ctrl-C and SIGTERM, even while they import: their parent handles
    them. A worker that died of one would look like an accident. Nor do they import the script that calls `run`: they
    need nothing of it, and would start the run once more."""
    resource_tracker.ensure_running()  # a tracker that the first child starts would unblock the signal
    with _starting:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        known = spawn.get_preparation_data
        spawn.get_preparation_data = lambda name: {
            key: value for key, value in known(name).items() if not key.startswith("init_main")
        }
        try:
            yield
        finally:
            spawn.get_preparation_data = known
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def when_orphaned(end: Callable[[], None]) -> None:
    """In a child: call `end` when its parent is gone. A killed parent cannot stop its children itself."""
    known = parent_process()  # a multiprocessing child knows its parent even if that is gone by now
    parent = os.getppid() if known is None else known.pid

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_SECONDS)
        end()

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


def die_with_parent() -> None:
    """In a child: end at once with the exit code `ORPHANED` when the parent is gone."""
    when_orphaned(lambda: os._exit(ORPHANED))


def how_it_ended(code: int | None) -> str:
    """
    >>> how_it_ended(-9), how_it_ended(1)
    ('by signal 9', 'with exit code 1')
    """
    return f"by signal {-code}" if code and code < 0 else f"with exit code {code}"


@contextmanager
def on_interrupt(act: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C, and SIGTERM, call `act` inside the block, which may raise KeyboardInterrupt. Outside of the main thread
    nothing changes."""

    def handle(signum: int, frame: FrameType | None) -> None:
        act()

    try:
        previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: the caller handles interrupts
        yield
        return
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


# ---------------------------------------------------------------- memory

CHILD_ENV = {
    "MALLOC_ARENA_MAX": "1",
    # Every tensor of 64 KiB or more is a mapping of its own, which goes back to the system when it is freed. By
    # default the allocator raises this limit step by step, keeps freed tensors, and takes up to a tenth more.
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "131072",
    "MALLOC_TOP_PAD_": "65536",
}
"""Environment of every process whose memory is promised: the one that measures, and the one a device trains in."""


def status_bytes(field: str, pid: int | str = "self") -> int:
    """A line of /proc/PID/status in bytes; 0 where the system has no such file, or the process is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    match = re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)
    return int(match.group(1)) * 1024 if match else 0


def forget_peak() -> None:
    """Count the peak of resident memory (VmHWM) anew."""
    with suppress(OSError):  # not Linux, or not permitted: the peak is then that of the whole life
        Path("/proc/self/clear_refs").write_text("5")


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Options of glibc's mallopt(3)."""
_LARGEST = 32 * 2**20
"""Bytes of one piece that can come from freed memory; glibc allows no more."""


def keep_freed_pages(most: int = 2**29) -> bool:
    """Keep up to `most` freed bytes in this process. False where the system's library has no such setting.

    The system zeroes and maps a fresh page first, which takes many times as long as the arithmetic on it. A server
    frees as much with every version as it needs for the next.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST) and mallopt(_M_TRIM_THRESHOLD, most))
