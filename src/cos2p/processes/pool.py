"""A pool of worker processes that can be stopped at any moment.

Each process has pipes of its own and a thread that talks to it. So a process killed in the midst of a sentence harms
nobody else: its thread reads the end of its pipe. With `ProcessPoolExecutor`, whose processes share one pipe, the rest
of such a sentence is waited for without end.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

from cos2p.errors import RunError
from cos2p.older_python import add_note
from cos2p.processes.children import deaf_children, die_with_parent, how_it_ended

T = TypeVar("T")


class WorkerDied(Exception):
    """The process was killed, or ended by itself, with the job undone."""


def wait(future: Future[Any]) -> Any:
    """The result; a worker that was killed is a RunError, not a traceback."""
    try:
        return future.result()
    except WorkerDied as death:
        memory = " (out of memory?)" if "signal" in str(death) else ""
        raise RunError(
            f"a worker could not do its task: {death}{memory}; the run is kept: go on with --resume, "
            "perhaps with --set run.workers=1"
        ) from None


class Pool:
    """Jobs for workers elsewhere; a thread of this process waits for each worker."""

    def __init__(self, count: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, work: Callable[..., T], *arguments: Any) -> Future[T]:
        """`work` and its arguments, result and errors are pickled; `work` is found by its name."""
        return self._threads.submit(self._do, work, arguments)

    def _do(self, work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        raise NotImplementedError


class ProcessPool(Pool):
    """Up to `count` processes, each started when a job finds the others busy. Each calls `start` before its first job.

    A process that dies costs the job it had; the next job gets a new one.
    """

    def __init__(self, count: int, start: Callable[..., None], *arguments: Any) -> None:
        super().__init__(count, "worker")
        self._start = (start, arguments)
        self._mine = threading.local()
        self._alive: set[_Worker] = set()

    def close(self) -> None:
        """Stop at once; jobs under way end with WorkerDied, those that wait are cancelled."""
        with self._lock:
            self._closed = True
            for worker in self._alive:
                worker.kill()
        self._threads.shutdown(cancel_futures=True)
        while self._alive:
            self._alive.pop().bury()

    def _do(self, work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        worker = getattr(self._mine, "worker", None) or self._hire()
        try:
            done, answer = worker.ask(work, arguments)
        except (EOFError, OSError):
            self._dismiss(worker)
            raise WorkerDied(f"its process ended {how_it_ended(worker.exit_code)}") from None
        if done:
            return answer  # type: ignore[no-any-return]
        raise answer

    def _hire(self) -> _Worker:
        with self._lock:
            if self._closed:
                raise WorkerDied("the pool is closed")
            worker = self._mine.worker = _Worker(*self._start)
            self._alive.add(worker)
        return worker

    def _dismiss(self, worker: _Worker) -> None:
        self._mine.worker = None
        with self._lock:
            self._alive.discard(worker)
        worker.bury()


class _Worker:
    """One process, seen from the thread that talks to it."""

    def __init__(self, start: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        spawn = get_context("spawn")
        # A pipe for each direction: the sockets of a single one for both take twice the time for messages of megabytes.
        jobs, self._jobs = spawn.Pipe(duplex=False)
        self._answers, answers = spawn.Pipe(duplex=False)
        served = (jobs, answers, start, arguments)
        self._process: SpawnProcess = spawn.Process(target=_serve, args=served, daemon=True)
        with deaf_children():
            self._process.start()
        jobs.close()
        answers.close()  # so that its end is the end of the pipe

    def ask(self, work: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bool, Any]:
        self._jobs.send((work, arguments))
        answer: tuple[bool, Any] = self._answers.recv()
        return answer

    def kill(self) -> None:
        self._process.kill()

    def bury(self) -> None:
        self._process.join(1)  # how it ended by itself says more than a kill
        self._process.kill()  # it may have closed its pipe and live on
        self._process.join()
        self._jobs.close()
        self._answers.close()

    @property
    def exit_code(self) -> int | None:
        return self._process.exitcode


# ---------------------------------------------------------------- inside a worker


def _serve(jobs: Connection, answers: Connection, start: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    die_with_parent()
    start(*arguments)
    while True:
        try:
            work, details = jobs.recv()
        except EOFError:
            return
        try:
            answer = True, work(*details)
        except Exception as error:
            add_note(error, f"in a worker process:\n{traceback.format_exc()}")
            answer = False, error
        answers.send(answer)
