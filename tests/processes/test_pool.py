"""The pool of worker processes, with real kills."""

from __future__ import annotations

import gc
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import psutil
import pytest

from cos2p.processes import passage
from cos2p.processes.passage import Common, Pieces
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


def doubled(data: bytes) -> Pieces:
    return Pieces([data, memoryview(data)])


_objects: list[bytes] = []


def seen_before(data: bytes) -> bool:
    _objects.append(data)
    return any(data is known for known in _objects[:-1])


class Deadly(list[bytes]):
    """Whoever writes it down is killed after the first piece."""

    counted = False

    def __iter__(self) -> Iterator[bytes]:
        yield b"x" * 100_000
        if self.counted:
            os.kill(os.getpid(), signal.SIGKILL)
        self.counted = True


def begin_an_answer() -> Pieces:
    return Pieces(Deadly())


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


def test_long_bytes_go_through_memory_and_longer_ones_through_the_pipe(pool: ProcessPool) -> None:
    for size in (0, 10, 3_000_000, 100, passage.MOST // 2 + 1, passage.MOST + 1):
        data = os.urandom(64) * (size // 64 + 1)
        assert pool.submit(doubled, Pieces([data, b"end"])).result(SECONDS) == (data + b"end") * 2


def test_a_process_keeps_what_its_jobs_have_in_common(pool: ProcessPool) -> None:
    first, other = [b"x" * 1000], [b"x" * 1000]
    jobs = [pool.submit(seen_before, Common(data)) for data in (first, first, other, other)]
    assert [job.result(SECONDS) for job in jobs] == [False, True, False, True]


def test_the_process_after_a_killed_one_is_sent_everything_anew(pool: ProcessPool) -> None:
    common = Common([b"x" * 1000])
    pid = pool.submit(greet, "you").result(SECONDS)[1]
    assert pool.submit(doubled, common).result(SECONDS) == b"x" * 2000
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerDied):
        pool.submit(doubled, common).result(SECONDS)
    assert pool.submit(doubled, common).result(SECONDS) == b"x" * 2000


def test_a_process_killed_while_it_writes_its_answer_leaves_nothing_behind() -> None:
    resource_tracker.ensure_running()
    files = psutil.Process().num_fds()
    pool = ProcessPool(1, start, "hello")
    try:
        for _ in range(3):
            job = pool.submit(begin_an_answer)
            with pytest.raises(WorkerDied, match="by signal 9"):
                job.result(SECONDS)
            assert pool.submit(doubled, Pieces([b"x" * 100_000])).result(SECONDS) == b"x" * 200_000
    finally:
        pool.close()
    del job
    gc.collect()
    assert psutil.Process().num_fds() <= files
