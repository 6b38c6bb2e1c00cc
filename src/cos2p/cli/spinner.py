"""Progress of work that is usually over in a moment: nothing is shown before two seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cos2p.cli.output import OutputMode, console
from cos2p.terminal.formatting import print_line, printable

SECONDS = 2.0


@contextmanager
def reading(mode: OutputMode, what: str = "reading") -> Iterator[Callable[[int, int, str], None]]:
    """A function to call with (done, all, what is at hand); shows it when it takes long, if somebody looks."""
    if mode.quiet or mode.json:
        yield lambda done, total, name: None
        return
    screen = console(stderr=True)
    due: float | None = None

    def show(done: int, total: int, name: str) -> None:
        nonlocal due
        due = time.monotonic() + SECONDS if due is None else due
        if name and time.monotonic() >= due:
            due = time.monotonic() + SECONDS
            print_line(screen, f"{what} {printable(name)} ({done + 1} of {total})")

    yield show


@contextmanager
def counting(mode: OutputMode, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A function to call with how many of `total` are done."""
    with reading(mode, what) as show:
        show(0, total, "")
        yield lambda done: show(done - 1, total, "sample")


@contextmanager
def busy(mode: OutputMode, what: str) -> Iterator[None]:
    """Says what is being done, at a terminal, of work that cannot say how far it is."""
    if mode.quiet or mode.json:
        yield
        return
    with console(stderr=True).status(what):
        yield
