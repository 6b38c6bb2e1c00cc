"""How much a process grew while it did something, at its peak: what torch takes is counted too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def growth(act: Callable[[], object]) -> int:
    """Bytes of resident memory at the peak of `act`, above what was resident before it."""
    _RESET.write_text("5")  # the peak begins anew
    before = _field("VmRSS")
    act()
    return max(0, _field("VmHWM") - before)


def _field(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise OSError(f"{_STATUS} has no {name}")
