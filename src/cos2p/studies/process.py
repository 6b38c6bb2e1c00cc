"""Inside a cell's process: one run, told to the study through a pipe.

The process stands in a process group of its own: a Ctrl-C at the terminal reaches the study alone, which passes it on
once. It dies with the study: were it to live on, a study started anew would meet it in the same folder.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cos2p.errors import Cos2pError
from cos2p.processes.children import when_orphaned
from cos2p.tracking.event_kinds import Event

EXIT_DEFECT = 70
STDOUT, STDERR = 1, 2
STATUS_SECONDS = 0.5
"""Between two messages about how far the run is."""


@dataclass(frozen=True)
class Status:
    """Where a running cell is."""

    share: float
    words: str
    remaining: float | None
    """Wall seconds, as far as the run can tell."""


@dataclass(frozen=True)
class Failed:
    reason: str
    exit_code: int
    traceback: str = ""


@dataclass(frozen=True)
class Stopped:
    """By Ctrl-C; the run can be resumed."""


Message = Status | Failed | Stopped


Work = Callable[[Mapping[str, Any], Path, Callable[[Status], None]], None]
"""What a cell does: recipe, run folder, whom to tell. Named at the top of a module, so that a process can find it."""


def run_cell(work: Work, recipe: Mapping[str, Any], folder: str, log: str, channel: Connection) -> None:
    """The main function of the process: does the work, and tells how it ended."""
    try:
        os.setpgrp()
        when_orphaned(_end_the_group)
        _write_to(Path(log))
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born deaf to it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        work(recipe, Path(folder), channel.send)
    except KeyboardInterrupt:
        channel.send(Stopped())
    except Cos2pError as error:
        stopped = error.exit_code == 130
        channel.send(Stopped() if stopped else Failed(str(error), error.exit_code))
    except Exception as error:
        reason = f"a defect of cos2p: {type(error).__name__}: {error}"
        channel.send(Failed(reason, EXIT_DEFECT, traceback.format_exc()))


def simulate(recipe: Mapping[str, Any], folder: Path, tell: Callable[[Status], None]) -> None:
    """The work of a real cell."""
    # Only here, in the cell's own process: the study itself stays small and starts at once.
    from cos2p.recipe import Recipe
    from cos2p.runtime.run import run  # likewise

    run(Recipe.parse(recipe), folder, resume=True, listener=Reporter(tell), as_bound=True)


class Reporter:
    """Listens to the run and tells the study how far it is, not too often."""

    def __init__(self, tell: Callable[[Status], None]) -> None:
        from cos2p.report.progress import Progress  # in the cell's own process, as above

        self._tell, self._progress = tell, Progress()
        self._told = float("-inf")

    def __call__(self, event: Event) -> None:
        progress = self._progress
        progress(event)
        if event.kind not in ("started", "resumed") and time.monotonic() - self._told < STATUS_SECONDS:
            return
        self._told = time.monotonic()
        words = f"{progress.count_words()} · {progress.score_words()}"
        self._tell(Status(progress.share, words, progress.remaining()))


def _end_the_group() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)  # its workers stand in the group too


def _write_to(log: Path) -> None:
    """What this process and its workers print goes to a file: the terminal belongs to the study."""
    log.parent.mkdir(exist_ok=True)
    with log.open("ab") as file:
        for stream in (STDOUT, STDERR):
            os.dup2(file.fileno(), stream)
