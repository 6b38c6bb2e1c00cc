"""A checkpoint written beside the run: one at a time, by a thread, from a snapshot that does not change."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from cos2p.tracking.checkpoint import Snapshot


class BackgroundWriter:
    """Not for many threads: one asks for all."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.seconds = 0.0
        """How long the last one took."""

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def write(self, snapshot: Snapshot, path: Path) -> None:
        """Begin to write; waits for the one before. What went wrong with that one is raised here or by `wait`."""
        self.wait()
        self._thread = threading.Thread(target=self._write, args=(snapshot, path), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Until nothing is under way; raises what went wrong."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _write(self, snapshot: Snapshot, path: Path) -> None:
        began = time.monotonic()
        try:
            snapshot.write(path)
        except BaseException as error:
            self._error = error
        self.seconds = time.monotonic() - began
