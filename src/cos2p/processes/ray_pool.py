"""The same pool on a Ray cluster: workers are actors on whichever machines have room.

A job is a pure function of its arguments, so one whose machine dies is done again on another: nothing is lost, and no
result depends on where it was computed.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from cos2p.errors import ConfigError
from cos2p.processes.pool import Pool, WorkerDied

T = TypeVar("T")

GpuWish = Literal["none", "any", "needed"]
"""No GPU; one if there is any; one, or it is an error."""

ATTEMPTS = 4
"""How often a job is begun: one that kills whoever does it must not go round the cluster."""

LOOK = 0.25
"""Seconds for which a job waits for a new worker before it looks whether an old one has become free."""


class RayPool(Pool):
    """Up to `count` actors, 0 for one on each processor of the cluster. Each calls `start` before its first job."""

    def __init__(
        self, address: str, count: int, start: Callable[..., None], *arguments: Any, gpus: GpuWish = "none"
    ) -> None:
        """`gpus`: whether each actor is to have a GPU of the cluster, or a part of one; without, it sees none."""
        self._ray = _connected(address)
        there = self._ray.cluster_resources()
        processors = int(there.get("CPU", 1))
        # An actor beyond the processors would wait for ever, and the jobs of its thread with it.
        self.count = max(1, min(count or processors, processors))
        self._gpus = gpu_share(gpus, int(there.get("GPU", 0)), self.count)
        self._start = (start, arguments)
        super().__init__(self.count, "ray")
        self._alive: list[Any] = []
        self._idle: list[Any] = []
        self._coming: list[_Coming] = []
        """Workers that were asked for. After a machine has died there may be no room for one, ever: no job waits for
        that alone."""

    def close(self) -> None:
        """Stop at once; jobs under way end with WorkerDied, those that wait are cancelled."""
        with self._lock:
            self._closed = True
            for actor in self._alive:
                self._ray.kill(actor)
        self._threads.shutdown(cancel_futures=True)
        self._ray.shutdown()

    def _do(self, work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        from ray.exceptions import RayActorError, RayError, RayTaskError

        death: Exception | None = None
        for _ in range(ATTEMPTS):
            try:
                actor = self._worker()
                result: T = self._ray.get(actor.do.remote(work, arguments))
            except RayActorError as error:  # it, or its whole machine
                death = error
                self._doubt_idle()
            except RayTaskError as error:
                self._free(actor)
                raise error.cause from None
            except RayError as error:
                raise WorkerDied(f"Ray: {_first_line(error)}") from None
            else:
                self._free(actor)
                return result
        raise WorkerDied(f"{ATTEMPTS} workers died of it: {_first_line(death)}")

    def _worker(self) -> Any:
        """One that is free, or a new one, whichever is there first. RayActorError if a new one cannot begin."""
        from ray.exceptions import RayActorError

        while True:
            with self._lock:
                if self._closed:
                    raise WorkerDied("the pool is closed")
                if self._idle:
                    return self._idle.pop()
                coming = self._coming.pop() if self._coming else self._hire()
            if not self._ray.wait([coming.there], timeout=LOOK)[0]:
                with self._lock:
                    self._coming.insert(0, coming)
                continue
            try:
                self._ray.get(coming.there)
            except RayActorError:
                if coming.proven:
                    continue  # it died while nobody needed it
                raise
            return coming.actor

    def _free(self, actor: Any) -> None:
        with self._lock:
            self._idle.append(actor)

    def _doubt_idle(self) -> None:
        """A machine may have died: who is idle has to say that it is there, so that no job is spent on finding out."""
        with self._lock:
            self._coming += [_Coming(actor, actor.is_there.remote(), proven=True) for actor in self._idle]
            self._idle.clear()

    def _hire(self) -> _Coming:
        kind = self._ray.remote(num_cpus=1, num_gpus=self._gpus, scheduling_strategy="SPREAD")(_Servant)
        actor = kind.remote(*self._start)
        self._alive.append(actor)
        return _Coming(actor, actor.is_there.remote(), proven=False)


def gpu_share(wish: GpuWish, gpus: int, workers: int) -> float:
    """The share of a GPU that each worker asks for: a whole one, or equal parts where there are fewer than workers.

    >>> gpu_share("needed", gpus=4, workers=2), gpu_share("needed", gpus=2, workers=6), gpu_share("any", 0, 6)
    (1.0, 0.3333333333333333, 0.0)
    """
    if wish == "needed" and not gpus:
        raise ConfigError(
            "an accelerator 'cuda' is wanted with run.engine 'ray', and no machine of the cluster has reported a GPU; "
            "start Ray there with --num-gpus, or set the accelerator to 'cpu' or 'auto'"
        )
    return 0.0 if wish == "none" or not gpus else 1 / -(-workers // gpus)


@dataclass(frozen=True, eq=False)
class _Coming:
    actor: Any
    there: Any
    """Says that it is there."""
    proven: bool
    """Whether it has begun before."""


def _connected(address: str) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anybody
    try:
        import ray
    except ImportError:
        raise ConfigError("run.engine is 'ray', and Ray is not installed here: pip install 'cos2p[ray]'") from None
    try:
        _knock(address)
        ray.init(address=address or "auto", ignore_reinit_error=True, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"no Ray cluster answers at {address or 'this machine'}: {_first_line(error)}; start one with "
            "`ray start --head`, add machines with `ray start --address HOST:PORT`, and name it in RAY_ADDRESS"
        ) from None
    return ray


def _knock(address: str) -> None:
    """OSError if nobody listens at HOST:PORT. Ray itself would try for two minutes; other forms are left to it."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10.0).close()


def _first_line(error: Exception | None) -> str:
    return str(error).strip().partition("\n")[0]


# ---------------------------------------------------------------- inside a worker


class _Servant:
    def __init__(self, start: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        start(*arguments)

    def is_there(self) -> bool:
        """It has begun."""
        return True

    def do(self, work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        return work(*arguments)
