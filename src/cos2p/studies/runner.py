"""Runs a study's cells: several at once if wanted, each in a process of its own, finished ones kept.

How many run at once changes no figure: a run computes the same with any number of workers, and cells share nothing.

A cell's process has a process group of its own: Ctrl-C at the terminal reaches the study alone, which passes it on
once. It ends with the study: a study that is started anew must not meet it in the same folder.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cos2p.errors import Cos2pError, Interrupted, RunError
from cos2p.processes.children import deaf_children, how_it_ended, on_interrupt, when_orphaned
from cos2p.studies.folder import Failures, earlier_outcome
from cos2p.studies.grid import Cell, CellOutcome, CellOutcomes
from cos2p.studies.progress import Status, StudyProgress
from cos2p.tracking.event_kinds import Event
from cos2p.tracking.files import keep_figures, read_json

TICK = 0.25
"""Seconds between two looks at the clock while nothing happens."""
EXIT_DEFECT = 70
STDOUT, STDERR = 1, 2
STATUS_SECONDS = 0.5
"""Between two messages about how far the run is."""


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
"""A cell's work with its recipe, its run folder and a function for its status. A process finds it by its name."""


def run_cell(work: Work, recipe: Mapping[str, Any], folder: str, log: str, channel: Connection) -> None:
    try:
        os.setpgrp()
        when_orphaned(_end_the_group)
        _write_to(Path(log))
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born deaf to it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
        work(recipe, Path(folder), channel.send)
    except KeyboardInterrupt:
        channel.send(Stopped())
    except Cos2pError as error:
        stopped = error.exit_code == 130
        channel.send(Stopped() if stopped else Failed(str(error), error.exit_code))
    except Exception as error:
        reason = f"a defect of cos2p: {type(error).__name__}: {error}"
        channel.send(Failed(reason, EXIT_DEFECT, traceback.format_exc()))


def simulate(recipe: Mapping[str, Any], folder: Path, send: Callable[[Status], None]) -> None:
    # Only here, in the cell's own process: the study itself stays small and starts at once.
    from cos2p.recipe import Recipe
    from cos2p.runtime.simulation import run  # likewise

    run(Recipe.parse(recipe, own=True), folder, resume=True, listener=Reporter(send), as_bound=True)


class Reporter:
    """Listens to the run and sends the study its status, not too often."""

    def __init__(self, send: Callable[[Status], None]) -> None:
        from cos2p.terminal.progress import Progress  # in the cell's own process, as above

        self._send, self._progress = send, Progress()
        self._sent = float("-inf")

    def __call__(self, event: Event) -> None:
        progress = self._progress
        progress(event)
        if event.kind not in ("started", "resumed") and time.monotonic() - self._sent < STATUS_SECONDS:
            return
        self._sent = time.monotonic()
        self._send(Status(progress.share, f"{progress.count_text()} · {progress.score_text()}"))


def _end_the_group() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)  # its workers stand in the group too


def _write_to(log: Path) -> None:
    """The output of this process and its workers goes to a file: the terminal belongs to the study."""
    log.parent.mkdir(exist_ok=True)
    with log.open("ab") as file:
        for stream in (STDOUT, STDERR):
            os.dup2(file.fileno(), stream)


# ---------------------------------------------------------------- in the study's process


class Runner:
    """An `Execute` that really runs the cells, into `folder`/cells."""

    def __init__(
        self,
        folder: Path,
        view: StudyProgress,
        jobs: int = 1,
        retry: bool = False,
        work: Work = simulate,
        engine: Mapping[str, str] = MappingProxyType({}),
        figures_only: bool = False,
    ) -> None:
        """`engine`: fields of every cell's `[run]` table. With Ray a cell's process stays here, where it merges and
        writes; what takes its time, training and evaluating, is done by the cluster's workers. `figures_only`: of a run
        that is over nothing else is kept."""
        self.folder, self.view, self.jobs, self.retry, self.work = folder, view, jobs, retry, work
        self.engine, self.figures_only = engine, figures_only
        self._running: list[_Job] = []
        self._interrupts = 0

    def __call__(
        self, cells: Sequence[Cell], after: Callable[[CellOutcomes], None] | None = None, later: int = 0
    ) -> CellOutcomes:
        """Run what has not run yet. Raises Interrupted after Ctrl-C, when all cells have stopped."""
        outcomes: dict[str, CellOutcome] = {}
        waiting: deque[Cell] = deque()
        for cell in cells:
            known = earlier_outcome(cell, self.folder, self.retry)
            if known is None:
                waiting.append(cell)
            else:
                outcomes[cell.name] = known
                self._lighten(cell, known)
        self.view.begin(cells, outcomes, later)

        def note(cell: Cell, outcome: CellOutcome) -> None:
            outcomes[cell.name] = outcome
            self._lighten(cell, outcome)
            self.view.ended(cell, outcome)
            if after is not None:
                after(dict(outcomes))

        if after is not None:
            after(dict(outcomes))
        with on_interrupt(self._pass_on):
            try:
                self._loop(waiting, note)
            finally:
                while self._running:
                    self._running.pop().kill()
        if self._interrupts:
            raise Interrupted(f"stopped after {len(outcomes)} of {len(cells) + later} cells")
        return outcomes

    def _loop(self, waiting: deque[Cell], note: Callable[[Cell, CellOutcome], None]) -> None:
        while self._running or (waiting and not self._interrupts):
            while waiting and len(self._running) < self.jobs and not self._interrupts:
                self._start(waiting.popleft())
            wait([job.channel for job in self._running] + [job.process.sentinel for job in self._running], TICK)
            for job in list(self._running):
                job.listen(self.view)
                if not job.process.is_alive():
                    job.listen(self.view)  # its last words
                    self._running.remove(job)
                    outcome, traceback = job.close()
                    if outcome is not None and not (self._interrupts and not outcome.ok):
                        Failures(self.folder).note(job.cell, outcome, traceback)
                        note(job.cell, outcome)
            self.view.tick()

    def _lighten(self, cell: Cell, outcome: CellOutcome) -> None:
        if self.figures_only and outcome.ok:
            keep_figures(self.folder / "cells" / cell.name)

    def _start(self, cell: Cell) -> None:
        job = _Job(cell, self.folder, self.work, self.engine, alone=self.jobs == 1)
        self._running.append(job)
        self.view.started(cell)

    def _pass_on(self) -> None:
        """Ctrl-C asks the cells to stop with a checkpoint; a third one stops them at once."""
        self._interrupts += 1
        for job in self._running:
            job.interrupt() if self._interrupts < 3 else job.kill()


class _Job:
    """A cell at work."""

    def __init__(self, cell: Cell, folder: Path, work: Work, engine: Mapping[str, str], alone: bool) -> None:
        self.cell, self.folder = cell, folder / "cells" / cell.name
        self.log = folder / "logs" / f"{cell.name}.log"
        self.began = time.monotonic()
        self.failed: Failed | None = None
        self.stopped = False
        recipe = cell.recipe.model_dump(mode="json")
        recipe["run"] |= engine
        if not alone:
            recipe["run"]["workers"] = 1
        spawn = get_context("spawn")
        self.channel: Connection
        self.channel, theirs = spawn.Pipe(duplex=False)
        arguments = (work, recipe, str(self.folder), str(self.log), theirs)
        self.process: SpawnProcess = spawn.Process(target=run_cell, args=arguments, name=cell.name)
        with deaf_children():  # until it stands in its own group
            self.process.start()
        theirs.close()

    def listen(self, view: StudyProgress) -> None:
        with suppress(EOFError, OSError):
            while self.channel.poll():
                message: Message = self.channel.recv()
                if isinstance(message, Status):
                    view.moved(self.cell, message)
                elif isinstance(message, Failed):
                    self.failed = message
                elif isinstance(message, Stopped):
                    self.stopped = True

    def interrupt(self) -> None:
        if self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, signal.SIGINT)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        _end_group(self.process.pid)

    def close(self) -> tuple[CellOutcome | None, str]:
        """The outcome, None if the user stopped it; and a defect's traceback."""
        self.process.join()
        self.channel.close()
        code = self.process.exitcode
        if code != 0:
            _end_group(self.process.pid)
        with suppress(OSError):
            if self.log.stat().st_size == 0:
                self.log.unlink()
        seconds = time.monotonic() - self.began
        if self.stopped:
            return None, ""
        if self.failed is not None:
            outcome = CellOutcome(self.cell.name, None, self.failed.reason, self.failed.exit_code, seconds=seconds)
            return outcome, self.failed.traceback
        if code == 0 and (self.folder / "result.json").exists():
            return CellOutcome(self.cell.name, read_json(self.folder / "result.json"), seconds=seconds), ""
        reason = f"its process ended {how_it_ended(code)} (out of memory?); what it wrote is in logs/{self.log.name}"
        return CellOutcome(self.cell.name, None, reason, RunError.exit_code, seconds=seconds), ""


def _end_group(pid: int | None) -> None:
    """Workers whose cell was killed would wait for it for ever."""
    if pid is not None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
