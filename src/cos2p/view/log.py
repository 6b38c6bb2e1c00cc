"""The log of a run that may still be writing it: what is new in it, whether the run is at work, and since when.

The log has no wall clock, so that runs are the same everywhere; its file has one.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from cos2p.errors import RunError
from cos2p.tracking.event_kinds import Event
from cos2p.tracking.events import is_torn, parse_event
from cos2p.tracking.files import explained

FINGERPRINT = 512
"""Bytes before the place read up to. A resumed run cuts its log back and may have grown past that place again by the
time we look; if these bytes are others, it did."""
PIECE = 4_000_000
"""Bytes read at a time, so that a long log can be read with progress and without holding it whole."""


class LogReader:
    """Reads only what is new, and from the start again when the file was cut or replaced."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._forget()

    def _forget(self) -> None:
        self.read_share = 1.0
        """How much of the file has been read; less than all of it after a `read` that met its limit."""
        self._offset, self._line, self._before = 0, 0, b""
        self._inode: int | None = None

    def read(self) -> tuple[bool, list[Event]]:
        """(whether it begins anew, events since the last call), of a long file only a piece at a time.

        A line without its end is left for the next call.
        """
        try:
            with self.path.open("rb") as file:
                fresh = self._is_another(file.fileno())
                if fresh:
                    self._forget()
                status = os.fstat(file.fileno())
                self._inode = status.st_ino
                file.seek(self._offset)
                events = self._parse(file.read(PIECE) + file.readline())
                self.read_share = self._offset / status.st_size if file.tell() < status.st_size else 1.0
                return fresh, events
        except FileNotFoundError:
            was_there = self._inode is not None
            self._forget()
            return was_there, []
        except OSError:
            with explained(self.path):
                raise

    def _is_another(self, descriptor: int) -> bool:
        if self._inode is None:
            return False
        status = os.fstat(descriptor)
        if status.st_ino != self._inode or status.st_size < self._offset:
            return True
        return os.pread(descriptor, len(self._before), self._offset - len(self._before)) != self._before

    def _parse(self, data: bytes) -> list[Event]:
        end = data.rfind(b"\n") + 1
        whole = data[:end]
        events = []
        for line in whole.splitlines():
            self._line += 1
            try:
                event = parse_event(line)
            except ValueError as damage:
                raise self._damaged(str(damage)) from None
            if event is not None:
                events.append(event)
        if not is_torn(data[end:]):
            self._line += 1
            raise self._damaged("does not end as it should")
        self._offset += end
        self._before = (self._before + whole)[-FINGERPRINT:]
        return events

    def _damaged(self, how: str) -> RunError:
        line = self._line
        self._forget()
        return RunError(f"{self.path}, line {line} {how}; the file was damaged")


QUIET_SECONDS = 120.0
"""Where files cannot be locked, a log that has been silent for this long is of a run that has stopped."""


def at_work(log: Path) -> bool:
    """Whether a process has the log open to write: it holds a lock that dies with it (`EventLog`)."""
    try:
        with log.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            except OSError:
                return time.time() - log.stat().st_mtime < QUIET_SECONDS
    except OSError:
        return False
    return False


def elapsed(folder: Path) -> float | None:
    """Wall seconds from the last start of the run, when its recipe was written, to its last event."""
    try:
        began, last = ((folder / name).stat().st_mtime for name in ("recipe.toml", "events.jsonl"))
    except OSError:
        return None
    return max(0.0, last - began)
