"""The executor's hold on the training process: start it, give it a task, and report every way it can end.

A killed process is reported with numbers, a slow one is waited for, and whoever comes next gets a fresh one.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import cos2p.errors
from cos2p.errors import Cos2pError, DataError, OwnerRefused
from cos2p.fleet.device.cap import CAPPED_ENV, SLACK_BYTES, own_bytes
from cos2p.fleet.device.jobs import Job, Setup, outward
from cos2p.fleet.messages import Answer
from cos2p.processes.children import CHILD_ENV
from cos2p.units import format_bytes

WATCH_SECONDS = 0.05


class Gone(Exception):
    """The training process ended in the middle."""

    def __init__(self, code: int, resident: int) -> None:
        super().__init__(code)
        self.code, self.resident = code, resident


class TrainingProcess:
    """One child at a time. `stopped` is asked while waiting: True ends the child."""

    def __init__(self, setup: Setup, log: Path, stopped: Callable[[], bool] = lambda: False) -> None:
        self.setup, self._log, self._stopped = setup, log, stopped
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._deadline = math.inf
        self.idle = 0
        self.facts: dict[str, Any] = {}

    @property
    def pid(self) -> int | None:
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def start(self) -> dict[str, Any]:
        """Begin a fresh process and load the device's data. DataError if that cannot be."""
        self.stop()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "cos2p.fleet.device.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | CHILD_ENV | CAPPED_ENV,
            )
        self._rest = b""
        try:
            answer = self._ask(self.setup.to_dict())
        except Gone as gone:
            self.stop()
            ended = f"the training process was {_ending(gone.code)}"
            raise DataError(f"{ended} before it began; see {self._log}", public=ended) from None
        if "unfit" in answer:
            self.stop()
            raise _as_it_was(answer)
        self.facts, self.idle = answer, answer["idle"]
        return answer

    def train(self, job: Job, seconds: float = math.inf) -> Answer:
        """Do one task, in a fresh process if there is none; the answer has a failure where there is no update.

        After `seconds` it is killed: the owner gives no more.
        """
        if self.pid is None:
            self.start()
        self._deadline = time.monotonic() + seconds
        try:
            answer = self._ask(asdict(job))
        except Gone as gone:
            self.stop()
            if time.monotonic() > self._deadline:
                return Answer(None, outward(OwnerRefused(public=f"seconds_per_day: {seconds:.0f} were left")))
            return self._killed(gone)
        finally:
            self._deadline = math.inf
        if "done" in answer:
            return Answer(numbers=answer["done"])
        if "out_of_memory" in answer:
            self.stop()  # its heap is torn; the next task begins clean
            return Answer(None, self._short(answer["out_of_memory"]), True, numbers=answer["out_of_memory"])
        return Answer(None, answer["failed"], cache_miss=answer.get("cache_miss") is True)

    def kill(self) -> None:
        """End the child from another thread; whoever waits for it sees that."""
        process = self._process
        if process is not None:
            process.kill()

    def stop(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()

    # ------------------------------------------------------------ how it ends

    def _short(self, numbers: dict[str, Any]) -> str:
        asked = f"; {format_bytes(numbers['asked'])} more were asked for" if numbers.get("asked") else ""
        return (
            f"out of memory: the cap is {format_bytes(numbers['memory'])} and {format_bytes(numbers['peak'])} "
            f"were in use{asked}"
        )

    def _killed(self, gone: Gone) -> Answer:
        used = max(0, gone.resident - self.idle)
        numbers = {"memory": self.setup.memory, "peak": used}
        killed = gone.code == -signal.SIGKILL
        if killed and self.setup.memory and used > 0.9 * self.setup.memory:
            return Answer(None, self._short(numbers) + ", so it was killed", True, numbers=numbers)
        return Answer(
            None, f"the training process was {_ending(gone.code)} with {format_bytes(used)} in use", numbers=numbers
        )

    # ------------------------------------------------------------ talking to it

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise Gone(process.wait(), 0) from None
        resident = 0
        while b"\n" not in self._rest:
            if select.select([process.stdout], [], [], WATCH_SECONDS)[0]:
                piece = os.read(process.stdout.fileno(), 2**16)
                if not piece:
                    raise Gone(process.wait(), resident)
                self._rest += piece
                continue
            resident = max(resident, own_bytes(process.pid))
            self._watch(process, resident)
        line, _, self._rest = self._rest.partition(b"\n")
        return dict(json.loads(line))

    def _watch(self, process: subprocess.Popen[bytes], resident: int) -> None:
        """Kill a child that is over its cap, or that nobody waits for any more."""
        limit = self.setup.memory if self.facts.get("device") == "cpu" else 0  # torch keeps that of a GPU
        over = limit and self.idle and resident > self.idle + limit + 2 * SLACK_BYTES
        if over or self._stopped() or time.monotonic() > self._deadline:
            process.kill()
            time.sleep(WATCH_SECONDS)


def _as_it_was(answer: dict[str, Any]) -> Cos2pError:
    """The error that kept the training process from beginning."""
    kind = getattr(cos2p.errors, answer["kind"], DataError)
    return (kind if issubclass(kind, Cos2pError) else DataError)(answer["unfit"], public=answer["public"])


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    return f"killed by signal {-code} ({signal.Signals(-code).name})"
