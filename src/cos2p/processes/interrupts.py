"""Ctrl-C as a request: long work stops where it can go on later."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
