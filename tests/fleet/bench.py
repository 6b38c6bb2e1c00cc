"""A driver on the bench: no network, no NVFlare; the test is the fleet, and trains in its own process."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from cos2p.fleet.messages import JoinRequest
from cos2p.fleet.server.driver import Driver
from cos2p.fleet.server.inbox import Answered
from cos2p.fleet.server.served_run import Evaluator
from cos2p.fleet.server.transfers import Transfers
from cos2p.fleet.spool import Notice
from cos2p.fleet.wire import CHUNK_BYTES
from cos2p.messages import Task, Update
from cos2p.methods import run_task
from cos2p.models.layout import Weights
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import RunSetup, build_run_setup
from cos2p.tracking.event_kinds import Event
from cos2p.training.masks import Remembered


class NoEvaluator(Evaluator):
    def __init__(self) -> None:
        self.judged: list[Weights] = []

    def evaluate(self, weights: Weights, everything: bool = False) -> Future[dict[str, Any]]:
        self.judged.append(weights)
        future: Future[dict[str, Any]] = Future()
        future.set_result({"validation": {"4": {"top1": 0.5, "top5": 1.0, "f1": 0.5}}})
        return future

    def close(self) -> None: ...


class Bench:
    """Runs the driver in a thread; the test plays the clients."""

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        self.clock = 0.0
        """Seconds pass when the test says so."""
        self.run_setup: RunSetup = build_run_setup(recipe)
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.offers: dict[str, Notice] = {}
        self.withdrawn: list[str] = []
        self.transfers = Transfers(folder / "spool")
        self.evaluator = NoEvaluator()
        self.driver = Driver(
            recipe, self.run_setup.config, self, self.transfers, self.evaluator, self._notify, lambda: self.clock
        )
        self.driver.begin(())
        self._news = threading.Condition()
        self._stop = False
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None
        self.memories: dict[str, Remembered] = {}

    # ------------------------------------------------------------ as the network

    def offer(self, client: str, notice: Notice) -> None:
        with self._news:
            self.offers[client] = notice
            self._news.notify_all()

    def withdraw(self, client: str) -> None:
        self.withdrawn.append(client)
        self.offers.pop(client, None)

    def _notify(self, event: Event) -> None:
        with self._news:
            self.log.append((event.kind, event.to_dict()))
            self._news.notify_all()

    # ------------------------------------------------------------ running

    def start(self) -> None:
        def run() -> None:
            try:
                self.driver.play(lambda: None, lambda: self._stop)
            except BaseException as error:
                self.error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop = True
        if self._thread is not None:
            self._thread.join(30)
        self.transfers.close()

    def wait(self, what: Callable[[], Any], seconds: float = 30.0) -> Any:
        with self._news:
            assert self._news.wait_for(lambda: what() or self.error, seconds), self.kinds()[-10:]
        if self.error is not None:
            raise self.error
        return what()

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.log]

    def events(self, kind: str, client: str = "") -> list[dict[str, Any]]:
        return [fields for reported, fields in self.log if reported == kind and client in ("", fields.get("client"))]

    # ------------------------------------------------------------ as a client

    def join(self, client: str, session: str = "s", **facts: Any) -> None:
        shard = self.run_setup.shards[client]
        self.driver.hello(client, session)
        self.driver.ready(client, session, JoinRequest(len(shard.train), len(shard.test), **facts))

    def take_offer(self, client: str) -> Notice:
        """The client's task is known to it now; the next one is another."""
        self.wait(lambda: client in self.offers)
        return self.offers.pop(client)

    def fetch(self, client: str) -> Task:
        """The client's task, chunk by chunk; waits for one."""
        notice: Notice = self.wait(lambda: self.offers.get(client))
        data = b""
        while len(data) < notice.size:
            data += self.transfers.fetch(client, notice.task, len(data))
        assert hashlib.sha256(data).hexdigest() == notice.digest
        return Task.from_bytes(data)

    def train(self, client: str) -> Update:
        task, memory = self.fetch(client), self.memories.get(client, {})
        update, self.memories[client] = run_task(self.run_setup.config, task, self.run_setup.shards[client], memory)
        return update

    def push(self, client: str, task: str, data: bytes) -> Notice:
        notice = Notice(task, len(data), hashlib.sha256(data).hexdigest())
        for offset in range(0, len(data), CHUNK_BYTES):
            self.transfers.push(client, notice, offset, memoryview(data[offset : offset + CHUNK_BYTES]))
        return notice

    def answer(self, client: str, update: Update | None = None) -> Update:
        """Train, send, tell."""
        update = update or self.train(client)
        self.offers.pop(client, None)
        self.driver.answered(Answered(client, update.task, self.push(client, update.task, update.to_bytes())))
        return update
