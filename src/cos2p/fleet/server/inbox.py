"""All that wakes the driver: messages of the network's threads, and timers."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cos2p.fleet.messages import JoinRequest
from cos2p.fleet.spool import Notice
from cos2p.tracking.event_kinds import Refused, Unfit


@dataclass(frozen=True)
class Ready:
    """A client has its data loaded and waits for work."""

    client: str
    facts: JoinRequest


@dataclass(frozen=True)
class Answered:
    """A client is done with a task: its update lies on the transfers, or it says why there is none."""

    client: str
    task: str
    notice: Notice | None
    failure: str = ""
    out_of_memory: bool = False
    numbers: Mapping[str, Any] | None = None
    cache_miss: bool = False
    """It does not have the frozen parts that the task counts on."""


@dataclass(frozen=True)
class Excluded:
    """A client sent what no device may send."""

    client: str
    reason: str


MOST_NUMBERS = 32


def measured_numbers(sent: object) -> dict[str, float] | None:
    """A device's own measurements, as far as they are a few finite numbers under short names.

    >>> measured_numbers({"peak": 10**8, "loss": "low", "seconds": float("nan")})
    {'peak': 100000000}
    """
    if not isinstance(sent, dict):
        return None
    sane = {
        name: value
        for name, value in sent.items()
        if isinstance(name, str) and len(name) <= 40 and type(value) in (int, float) and abs(value) < 1e18
    }
    return dict(list(sane.items())[:MOST_NUMBERS])


@dataclass(frozen=True)
class Asked:
    """The user wants the run to pause, to go on later from a checkpoint; or to end now, with a reason."""

    end: str = ""


Happening = Ready | Answered | Excluded | Asked | Unfit | Refused
"""The last two are events as they are: nothing is done about them but to write them down."""


class Pace:
    """How many messages that no honest device repeats came from each client in the last minute."""

    MOST = 60

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heard: dict[str, deque[float]] = {}

    def too_many(self, client: str) -> bool:
        """One more came."""
        heard = self._heard.setdefault(client, deque(maxlen=self.MOST))
        full = len(heard) == self.MOST and self._clock() - heard[0] < 60.0
        heard.append(self._clock())
        return full


class Timers:
    """Timers on a clock that only goes forward."""

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
