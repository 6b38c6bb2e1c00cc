"""Progress of work that is usually over in a moment: nothing is shown before two seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cos2p.cli.voice import OutputMode, console

SECONDS = 2.0


@contextmanager
def reading(voice: OutputMode, what: str = "reading") -> Iterator[Callable[[int, int, str], None]]:
    """A function to be told of (done, all, what is at hand); shows it when it takes long, if somebody looks."""
    if voice.quiet or voice.json:
        yield lambda done, total, name: None
        return
    from cos2p.report.words import printable

    screen = console(stderr=True)
    due: float | None = None

    def tell(done: int, total: int, name: str) -> None:
        nonlocal due
        due = time.monotonic() + SECONDS if due is None else due
        if name and time.monotonic() >= due:
            due = time.monotonic() + SECONDS
            line = f"{what} {printable(name)} ({done + 1} of {total})"
            screen.print(line, markup=False, highlight=False, soft_wrap=True)

    yield tell


@contextmanager
def counting(voice: OutputMode, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A function to be told how many of `total` are done."""
    with reading(voice, what) as tell:
        tell(0, total, "")
        yield lambda done: tell(done - 1, total, "sample")
