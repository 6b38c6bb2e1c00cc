"""A hard limit on the memory a process may take for training, kept by the operating system.

What works for torch on a CPU, and what does not:

    RLIMIT_AS    counts every mapping, also libraries and files that are only read: gigabytes before the first tensor
    RLIMIT_DATA  counts private writable memory alone, which is what tensors are. An allocation beyond it fails at
                 once with the number of bytes asked for, as an exception in the process that asked; nobody else
                 is harmed. Needs no rights.
    cgroups      count pages that are really used, and kill. Need rights, or a system that delegates them.

So: RLIMIT_DATA on Linux. It is set over the idle state (interpreter, torch, thread pool, the device's data), as the
ledger counts. The parent also watches the resident memory and kills a process that is over its cap all the same:
memory the limit does not count, or a system without it.
"""

from __future__ import annotations

import re
import resource
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from cos2p.processes.children import status_bytes

CAPPED_ENV = {
    # MKL keeps buffers of some megabytes for every shape of product it has seen, and hardly touches them; RLIMIT_DATA
    # counts them all the same. Given back after each product they cost no time that can be measured.
    "MKL_DISABLE_FAST_MM": "1",
}
"""Environment of a process that will be capped."""

SLACK_BYTES = 16 * 2**20
"""Over the budget: Python's own small objects and what the allocator rounds up; the ledger counts tensors."""

_ASKED = re.compile(r"tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)", re.IGNORECASE)
_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def data_bytes(pid: int | str = "self") -> int:
    """Private writable memory of a process: what RLIMIT_DATA counts."""
    return status_bytes("VmData", pid)


def own_bytes(pid: int) -> int:
    """Resident memory of a process that is its own: not the pages of files it only reads, such as a mapped task."""
    if Path("/proc/self/status").exists():
        return status_bytes("RssAnon", pid)
    with suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return 0


def mapped_bytes() -> int:
    return status_bytes("RssFile")


def peak_bytes(pid: int | str = "self") -> int:
    """Highest resident memory since the process began, or since `forget_peak`."""
    return status_bytes("VmHWM", pid)


def set_cap(budget: int) -> int | None:
    """Limit this process to `budget` bytes over what it has now. Returns the limit, or None where there is none."""
    if not sys.platform.startswith("linux"):
        return None
    limit = data_bytes() + budget + SLACK_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    return limit


def is_out_of_memory(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(
        sign in text for sign in ("can't allocate memory", "bad_alloc", "cannot allocate memory", "out of memory")
    )


def bytes_asked(error: BaseException) -> int | None:
    """How much the allocation wanted that failed, if torch says so."""
    match = _ASKED.search(str(error))
    return int(float(match[1]) * _UNITS[match[2].lower()]) if match else None
