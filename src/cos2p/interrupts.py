"""Ctrl-C as a request: long work stops where it can go on later, and its helpers are left alone."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType
from typing import Any


@contextmanager
def on_interrupt(act: Callable[[], None]) -> Iterator[None]:
    """In the block Ctrl-C calls `act`, which may raise KeyboardInterrupt. Not in the main thread: nothing changes."""

    def handle(signum: int, frame: FrameType | None) -> None:
        act()

    previous: Any
    try:
        previous = signal.signal(signal.SIGINT, handle)
    except ValueError:  # not in the main thread: the caller handles interrupts
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


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
