"""Who is here: which process speaks for a client now, and when it was last heard.

Written by the network's threads, read by the run's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass
class _Entry:
    heard: float
    session: str = ""
    gone: bool = False
    """Told to the coordinator as having left."""
    from_before: bool = False
    """Known from a checkpoint: the server process that gave it its task is no more."""


class Presence:
    def __init__(self, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience, self._clock = patience, clock
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}

    def restore(self, clients: Iterable[str]) -> None:
        """Clients of a checkpoint. They have the usual time to be heard; then they have left."""
        with self._lock:
            for client in clients:
                self._entries[client] = _Entry(self._clock(), from_before=True)

    def hello(self, client: str, session: str) -> None:
        with self._lock:
            entry = self._entries.setdefault(client, _Entry(self._clock()))
            entry.session, entry.heard = session, self._clock()

    def is_current(self, client: str, session: str) -> bool:
        """A process that was replaced by a newer one of the same client has nothing to say any more."""
        with self._lock:
            return client in self._entries and self._entries[client].session == session

    def heard(self, client: str, session: str | None = None) -> None:
        with self._lock:
            entry = self._entries.get(client)
            if entry is not None and session in (None, entry.session):
                entry.heard = self._clock()

    def session(self, client: str) -> str:
        with self._lock:
            return self._entries[client].session if client in self._entries else ""

    def mark_joined(self, client: str) -> bool:
        """It is here from now on. Returns whether it was known from a checkpoint, and not heard since."""
        with self._lock:
            entry = self._entries.setdefault(client, _Entry(self._clock()))
            before, entry.from_before = entry.from_before, False
            entry.gone, entry.heard = False, self._clock()
            return before

    def mark_silent(self) -> list[str]:
        """Those who have left without a word are gone from now on; each is named once."""
        return self._turn(lambda entry, age: not entry.gone and age > self._patience, gone=True)

    def mark_returned(self) -> list[str]:
        """Those who were gone and are heard again, the same process as before, are here again; each is named once."""
        return self._turn(lambda entry, age: entry.gone and not entry.from_before and age <= self._patience, gone=False)

    def ages(self) -> dict[str, float]:
        """Seconds since each client was heard."""
        with self._lock:
            return {client: self._clock() - entry.heard for client, entry in self._entries.items()}

    def _turn(self, which: Callable[[_Entry, float], bool], gone: bool) -> list[str]:
        now = self._clock()
        with self._lock:
            turned = [client for client, entry in self._entries.items() if which(entry, now - entry.heard)]
            for client in turned:
                self._entries[client].gone = gone
            return turned
