"""Timers on a clock that only goes forward."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable


class Timers:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: list[tuple[float, int, str]] = []
        self._count = 0

    def start(self, name: str, seconds: float) -> None:
        heapq.heappush(self._due, (self._clock() + max(0.0, seconds), self._count, name))
        self._count += 1

    def seconds_to_next(self) -> float:
        """Infinity if there is none."""
        return max(0.0, self._due[0][0] - self._clock()) if self._due else float("inf")

    def due(self) -> list[str]:
        """The names of those whose time has come, earliest first; each is given out once."""
        names = []
        while self._due and self._due[0][0] <= self._clock():
            names.append(heapq.heappop(self._due)[2])
        return names
