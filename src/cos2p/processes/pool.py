"""A pool of worker processes that can be stopped at any moment.

Each process has pipes of its own and a thread that talks to it. So a process killed in the midst of a sentence harms
nobody else: its thread reads the end of its pipe. With `ProcessPoolExecutor`, whose processes share one pipe, the rest
of such a sentence is waited for without end. A long message goes through memory that both sides see: a pipe hands over
64 KiB at a time, and wakes the other side for each.
"""

from __future__ import annotations

import mmap
import os
import pickle
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any, TypeVar

from cos2p.errors import RunError
from cos2p.older_python import add_note
from cos2p.processes.children import deaf_children, die_with_parent, how_it_ended

T = TypeVar("T")

MOST = 2**25
"""Bytes of a message that go through memory; it is kept for the next one."""


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
        self._down, self._up = _Shared(), _Shared()
        ends = jobs, self._down, answers, self._up
        self._process: SpawnProcess = spawn.Process(target=_serve, args=(*ends, start, arguments), daemon=True)
        with deaf_children():
            self._process.start()
        jobs.close()
        answers.close()  # so that its end is the end of the pipe

    def ask(self, work: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bool, Any]:
        self._down.send(self._jobs, (work, arguments))
        answer: tuple[bool, Any] = self._up.receive(self._answers)
        return answer

    def kill(self) -> None:
        self._process.kill()

    def bury(self) -> None:
        self._process.join(1)  # how it ended by itself says more than a kill
        self._process.kill()  # it may have closed its pipe and live on
        self._process.join()
        for end in (self._jobs, self._answers, self._down, self._up):
            end.close()

    @property
    def exit_code(self) -> int | None:
        return self._process.exitcode


class _Shared:
    """Memory next to a pipe. It is a file without a name, on no disk: when both processes have ended, it is gone."""

    def __init__(self, file: int | None = None) -> None:
        self._file = _nameless_file() if file is None else file
        self._memory: mmap.mmap | None = None

    def __reduce__(self) -> tuple[Callable[[Any], _Shared], tuple[Any]]:
        """To a process that is being started."""
        return _other_end, (None if self._file < 0 else DupFd(self._file),)

    def send(self, pipe: Connection, value: Any) -> None:
        data = ForkingPickler.dumps(value)
        if self._reaches(len(data)):
            assert self._memory is not None
            self._memory[: len(data)] = data
            pipe.send(len(data))
        else:
            pipe.send(0)
            pipe.send_bytes(data)

    def receive(self, pipe: Connection) -> Any:
        size = pipe.recv()
        if not size:
            return pickle.loads(pipe.recv_bytes())
        if self._memory is None or len(self._memory) < size:
            self._map(os.fstat(self._file).st_size)
        assert self._memory is not None
        with memoryview(self._memory) as there:
            return pickle.loads(there[:size])

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()
        if self._file >= 0:
            os.close(self._file)
        self._memory, self._file = None, -1

    def _reaches(self, size: int) -> bool:
        """Whether there is so much memory; it is made if it can be."""
        if self._memory is not None and size <= len(self._memory):
            return True
        if self._file < 0 or size > MOST:
            return False
        try:
            whole = max(mmap.PAGESIZE, 1 << (size - 1).bit_length())
            os.posix_fallocate(self._file, 0, whole)  # so that no write finds out that there is no room
            self._map(whole)
        except OSError:
            return False
        return True

    def _map(self, size: int) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        self._memory = mmap.mmap(self._file, size)


def _nameless_file() -> int:
    """Below 0 where there is none."""
    if hasattr(os, "memfd_create") and hasattr(os, "posix_fallocate"):
        with suppress(OSError):
            return os.memfd_create("cos2p", os.MFD_CLOEXEC)
    return -1


def _other_end(file: Any) -> _Shared:
    return _Shared(-1 if file is None else file.detach())


# ---------------------------------------------------------------- inside a worker


def _serve(
    jobs: Connection,
    down: _Shared,
    answers: Connection,
    up: _Shared,
    start: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:
    die_with_parent()
    start(*arguments)
    while True:
        try:
            work, details = down.receive(jobs)
        except EOFError:
            return
        try:
            answer = True, work(*details)
        except Exception as error:
            add_note(error, f"in a worker process:\n{traceback.format_exc()}")
            answer = False, error
        up.send(answers, answer)
