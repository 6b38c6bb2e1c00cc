"""The pool of worker processes, with real kills."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import struct
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import psutil
import pytest

from cos2p.processes.pool import ProcessPool, WorkerDied

SECONDS = 60
_greeting = ""


def start(greeting: str) -> None:
    global _greeting
    _greeting = greeting


def greet(name: str) -> tuple[str, int]:
    return f"{_greeting} {name}", os.getpid()


def divide(numerator: int, denominator: int) -> float:
    return numerator / denominator


def say_half_a_sentence(spoken: Path) -> None:
    """As if killed while the answer is on its way: a header that promises more than comes."""
    channel = sys._getframe(1).f_locals["answers"]
    os.write(channel.fileno(), struct.pack("!i", 1000) + b"half")
    spoken.touch()
    time.sleep(SECONDS)


def doubled(data: bytes) -> bytes:
    return data * 2


class Deadly:
    """Whoever writes it down is killed."""

    def __reduce__(self) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)
        return bytes, ()


def begin_an_answer() -> tuple[bytes, Deadly]:
    return b"x" * 100_000, Deadly()


def workers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())]


@pytest.fixture
def pool() -> Iterator[ProcessPool]:
    pool = ProcessPool(1, start, "hello")
    yield pool
    pool.close()


def test_jobs_are_done_in_another_process_after_its_start(pool: ProcessPool) -> None:
    first, second = pool.submit(greet, "you").result(SECONDS), pool.submit(greet, "there").result(SECONDS)
    assert (first[0], second[0]) == ("hello you", "hello there")
    assert first[1] == second[1] != os.getpid()


def test_a_process_starts_only_when_the_others_are_busy() -> None:
    pool = ProcessPool(3, start, "hello")
    try:
        assert len({pool.submit(greet, "you").result(SECONDS)[1] for _ in range(5)}) == 1
        jobs = [pool.submit(time.sleep, 0.5), pool.submit(greet, "you"), pool.submit(time.sleep, 0.5)]
        assert [job.result(SECONDS) for job in jobs][1][0] == "hello you"
        assert len(workers()) == 3
    finally:
        pool.close()
    assert workers() == []


def test_an_error_comes_back_with_the_place_where_it_happened(pool: ProcessPool) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        pool.submit(divide, 1, 0).result(SECONDS)
    assert "return numerator / denominator" in caught.value.__notes__[0]
    assert pool.submit(divide, 1, 2).result(SECONDS) == 0.5


def test_a_killed_process_costs_its_job_alone(pool: ProcessPool) -> None:
    pid = pool.submit(greet, "you").result(SECONDS)[1]
    job = pool.submit(time.sleep, SECONDS)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match="by signal 9"):
        job.result(SECONDS)
    assert pool.submit(greet, "again").result(SECONDS)[0] == "hello again"


def test_closing_does_not_wait_for_the_rest_of_an_answer(pool: ProcessPool, tmp_path: Path) -> None:
    spoken = tmp_path / "spoken"
    job, waiting = pool.submit(say_half_a_sentence, spoken), pool.submit(greet, "you")
    while not spoken.exists():
        assert not job.done(), job.result()
        time.sleep(0.01)
    closing = threading.Thread(target=pool.close, daemon=True)
    closing.start()
    closing.join(SECONDS / 2)
    assert not closing.is_alive()
    with pytest.raises(WorkerDied):
        job.result(0)
    assert waiting.cancelled()


def test_closing_while_a_process_starts_ends_it(pool: ProcessPool) -> None:
    job = pool.submit(greet, "you")
    while not workers():
        assert not job.done(), job.result()
        time.sleep(0.001)
    pool.close()
    assert isinstance(job.exception(0), WorkerDied)
    assert workers() == []


def test_ctrl_c_does_not_reach_a_process_not_even_at_its_start(pool: ProcessPool) -> None:
    job = pool.submit(greet, "you")
    while not job.done():
        for worker in workers():
            worker.send_signal(signal.SIGINT)
        time.sleep(0.001)
    assert job.result()[0] == "hello you"


def test_bytes_of_any_length_come_back(pool: ProcessPool) -> None:
    for size in (0, 10, 3_000_000, 100, 2**25):
        data = os.urandom(64) * (size // 64 + 1)
        assert pool.submit(doubled, data).result(SECONDS) == data * 2


def test_what_cannot_be_pickled_costs_no_process(pool: ProcessPool) -> None:
    pid = pool.submit(greet, "you").result(SECONDS)[1]
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
        pool.submit(doubled, lambda: 0).result(SECONDS)  # type: ignore[arg-type]
    assert pool.submit(greet, "you").result(SECONDS)[1] == pid


def test_a_process_killed_while_it_writes_its_answer_leaves_nothing_behind() -> None:
    resource_tracker.ensure_running()
    files = psutil.Process().num_fds()
    pool = ProcessPool(1, start, "hello")
    try:
        for _ in range(3):
            job = pool.submit(begin_an_answer)
            with pytest.raises(WorkerDied, match="by signal 9"):
                job.result(SECONDS)
            assert pool.submit(doubled, b"x" * 100_000).result(SECONDS) == b"x" * 200_000
    finally:
        pool.close()
    del job
    gc.collect()
    assert psutil.Process().num_fds() <= files
