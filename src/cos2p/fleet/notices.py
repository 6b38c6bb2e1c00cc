"""Reports of a kit's processes: a file in the kit, read by `fleet serve`, `fleet join` and the run that goes on.

One line for each device and reason; the same one is written again after a while, not with every attempt.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

AGAIN_SECONDS = 300.0
_NAME = "notices.jsonl"

REVOKED = "its kit was revoked"
"""A reason that a run acts on: whoever holds the kit is cut off in the middle of it."""

FORBIDDEN = "it sent what it may not: "
"""How a reason begins for which a run excludes a device."""


class Notices:
    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME
        self._reported: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def add(self, client: str, reason: str, again: float = AGAIN_SECONDS) -> None:
        """Unless the same was said less than `again` seconds ago."""
        with self._lock:
            now = time.time()
            if now - self._reported.get((client, reason), 0.0) < again:
                return
            self._reported[client, reason] = now
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"at": now, "client": client, "reason": reason}) + "\n")


def forget(folder: Path) -> None:
    (folder / _NAME).unlink(missing_ok=True)


class NoticeReader:
    """Reads the reports that are new since the last look."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME
        self._offset = self._path.stat().st_size if self._path.exists() else 0

    def read(self) -> list[tuple[str, str]]:
        """(device, reason)."""
        if not self._path.exists():
            self._offset = 0
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            lines = file.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [(str(entry["client"]), str(entry["reason"])) for entry in map(json.loads, whole.splitlines())]
