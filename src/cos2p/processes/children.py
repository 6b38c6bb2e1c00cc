"""Processes that another one starts: deaf to Ctrl-C, gone when it is gone, and how they ended."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import current_process, parent_process, resource_tracker

LOOK_SECONDS = 0.5
ORPHANED = 3
"""The exit code of a process that ended because its parent had."""


@contextmanager
def deaf_children() -> Iterator[None]:
    """Processes started in here do not hear Ctrl-C, not even while they are still importing: it is the business of
    their parent, and a worker that died of it would look like an accident."""
    resource_tracker.ensure_running()  # started later, by the first process, it would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def when_orphaned(end: Callable[[], None]) -> None:
    """In a child: a killed parent cannot stop it, so it looks out for itself, and calls `end` when it is adopted."""
    known = parent_process()  # of a multiprocessing child, even if it is gone by now
    parent = os.getppid() if known is None else known.pid

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_SECONDS)
        end()

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


def die_with_parent() -> None:
    """An orphan works for nobody: it ends at once, with `ORPHANED` as its code."""
    when_orphaned(lambda: os._exit(ORPHANED))


UNGUARDED = 77
"""The exit code of a worker whose script would have started the run once more."""


def leave_if_unguarded() -> None:
    """A worker begins by importing the script that started it. One that calls `run` there, not under
    `if __name__ == "__main__":`, would do so in every worker: end this one, with a code that the parent knows."""
    if getattr(current_process(), "_inheriting", False):
        os._exit(UNGUARDED)


def how_it_ended(code: int | None) -> str:
    """
    >>> how_it_ended(-9), how_it_ended(1)
    ('by signal 9', 'with exit code 1')
    """
    return f"by signal {-code}" if code and code < 0 else f"with exit code {code}"
