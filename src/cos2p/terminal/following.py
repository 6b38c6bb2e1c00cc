"""A run's progress on the screen: a live view in a terminal, plain lines elsewhere.

with following(console) as listener:
    run(recipe, out, listener=listener)
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cos2p.terminal.formatting import count, duration, over_budget_text, print_line, printable, rate_text
from cos2p.terminal.progress import Clock, Progress
from cos2p.tracking.event_kinds import Aggregated, DeviceEvent, Event, Lowered, Merged, Rated, Started, Waiting
from cos2p.tracking.events import Listener
from cos2p.units import format_bytes

PLAIN_LINES = 40
"""Lines about rounds a run without a terminal writes, at most."""
PLAIN_SECONDS = 2.0
"""Wall seconds between two of them, at least."""
NOTES = 5
"""Troubles shown one by one unless asked for all of them; after that they are only counted."""

PLANS = 8
"""Plans of devices shown when a run starts."""


def note_text(event: Event) -> str | None:
    """A line for an event that is trouble; None for all others."""
    said = {
        "refused": "update refused",
        "failed": "task failed",
        "dropped": "update dropped",
        "excluded": "gets no more tasks",
        "doubted": "is not believed",
        "lost": "lost its task in a restart",
        "left": "is gone",
        "unfit": "cannot take part",
        "lowered": "gets a smaller submodel",
    }.get(event.kind)
    back = getattr(event, "until", None) is not None  # by its hours: no trouble
    if said is None or back or not isinstance(event, DeviceEvent):
        return None
    why = getattr(event, "reason", None)
    reason = f": {printable(why)}" if why else ""
    if isinstance(event, Lowered):
        reason = f": R {event.was:g} → {event.rate:g}"
    return f"{printable(event.client)} {said}{reason}"


def detail_text(event: Event) -> str | None:
    """A line for a merged update, for those who want to see everything."""
    if not isinstance(event, Merged):
        return None
    low, top = event.window
    loss = event.report.get("loss")
    scored = f", loss {loss:.3f}" if loss is not None else ""
    what = f"blocks {low + 1}–{top}" if low < top else "sums of features"
    return f"{printable(event.client)} merged: {what}, τ {event.staleness}{scored}"


def budget_text(event: Started) -> str | None:
    """Names of the devices that could train the whole model, if not all of them can."""
    if event.full_memory is None or not event.devices:
        return None
    memories = sorted(int(device["memory"]) for device in event.devices.values())
    if event.full_memory <= memories[0]:
        return None
    able = sum(memory >= event.full_memory for memory in memories)
    have = " to ".join(dict.fromkeys(format_bytes(memory) for memory in (memories[0], memories[-1])))
    could = f"{able} of them" if able else "none of them"
    takes = format_bytes(event.full_memory)
    return f"the whole model takes {takes} to train, the devices have {have}: {could} could alone"


def plans_text(event: Started) -> list[str]:
    """The plans of devices, those of one plan together."""
    found = Counter((device.get("plan"), device.get("why")) for device in event.devices.values())
    lines = [f"{count(many, 'device')}: {plan} ({why})" for (plan, why), many in found.most_common() if plan]
    return [*lines[:PLANS], *([f"and {len(lines) - PLANS} more plans"] if len(lines) > PLANS else [])]


class _View:
    """Common to both views: keeps the progress, shows troubles."""

    def __init__(self, console: Console, progress: Progress, verbose: bool) -> None:
        self.console, self.progress, self.verbose = console, progress, verbose
        self._notes = 0

    def show(self, event: Event) -> None:
        if isinstance(event, Started) and (budget := budget_text(event)):
            self.say(budget)
        for line in plans_text(event) if type(event) is Started else ():
            self.say(line)
        for about in (event.notes or ()) if isinstance(event, Started) else ():
            self.say(printable(about))
        if isinstance(event, Aggregated) and event.version == 1 and (over := self.progress.figures.over_budget):
            self.say(over_budget_text(over))
        if isinstance(event, Rated):
            self.say(f"learning rate {rate_text(event)}")
        if isinstance(event, Waiting):
            self.say(f"waiting: {printable(event.reason)}")
        if self.verbose and (detail := detail_text(event)):
            self.say(detail)
        note = note_text(event)
        if note is None:
            return
        self._notes += 1
        if self.verbose or self._notes <= NOTES:
            self.say(f"{self.progress.time_text(event.t)}: {note}")
        elif self._notes == NOTES + 1:
            self.say("further troubles are counted only; -v shows all")

    def say(self, line: str) -> None:
        print_line(self.console, line)


class PlainLines(_View):
    """For logs and pipes: a line per round, but never more than a few seconds or a few dozen lines apart."""

    def __init__(self, console: Console, progress: Progress, verbose: bool = False) -> None:
        super().__init__(console, progress, verbose)
        self._shown = (-1.0, float("-inf"))

    def __call__(self, event: Event) -> None:
        self.progress(event)
        self.show(event)
        if isinstance(event, Started):  # or resumed
            self.say(f"{event.title}: {event.kind}, {len(event.devices)} devices")
        elif isinstance(event, Aggregated) and self._due():
            self.say(self.progress.line())

    def _due(self) -> bool:
        share, at = self.progress.share, self.progress.elapsed()
        enough = share - self._shown[0] >= 1 / PLAIN_LINES and at - self._shown[1] >= PLAIN_SECONDS
        if self.verbose or enough:
            self._shown = (share, at)
            return True
        return False


class LiveView(_View):
    """For a terminal: a bar and what matters, redrawn four times a second and gone when the run is over."""

    def __init__(self, console: Console, progress: Progress, verbose: bool = False) -> None:
        super().__init__(console, progress, verbose)
        self._lock = threading.RLock()  # the screen is drawn by a thread of its own
        self.live = Live(get_renderable=self.draw, console=console, refresh_per_second=4, transient=True)

    def __call__(self, event: Event) -> None:
        with self._lock:
            self.progress(event)
        self.show(event)

    def draw(self) -> Group:
        with self._lock:
            progress = self.progress
            if not progress.title:
                return Group(Text(f"loading the data, starting the workers · {duration(progress.elapsed())}"))
            head = Table.grid(padding=(0, 1), expand=False)
            head.add_row(
                Text(progress.title, style="bold"),
                ProgressBar(total=1.0, completed=progress.share, width=28),
                Text(progress.count_text()),
                Text(f"{duration(progress.elapsed())} · {progress.remaining_text()}", style="dim"),
            )
            time_text = progress.time_text(progress.figures.now)
            scores = f"{time_text} · {progress.score_text()} · {progress.client_text()}"
            trouble = Text(progress.trouble_text(), style="yellow" if progress.late() else "dim")
            return Group(head, Text(scores), trouble)


@contextmanager
def following(console: Console, verbose: bool = False, clock: Clock = time.monotonic) -> Iterator[Listener]:
    """A listener that shows the run on the console: live if it is a terminal, else plain lines."""
    if console.is_terminal and not console.is_dumb_terminal:
        view = LiveView(console, Progress(clock), verbose)
        with view.live:
            yield view
    else:
        yield PlainLines(console, Progress(clock), verbose)
