"""NVFlare's side of a device: fetch the task, have it trained by the training process, send the update back.

Runs in the client's job process. It survives its training process, and sends heartbeats while that one works.
"""

from __future__ import annotations

import json
import math
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from cos2p.errors import Cos2pError, OwnerRefused, UpdateRefused
from cos2p.fleet.device.jobs import Job, Setup, outward
from cos2p.fleet.device.owner import DeviceFile, OwnerFile, Spending, remembered_file, today
from cos2p.fleet.device.training import TrainingProcess
from cos2p.fleet.messages import Answer, CannotTakePart, Heartbeat, Hello, JoinRequest
from cos2p.fleet.notices import Notices
from cos2p.fleet.nvflare.link import Link, LinkDown, Refusal
from cos2p.fleet.spool import Incoming, Notice, clean, digest_of_file
from cos2p.fleet.wire import ASK_SECONDS
from cos2p.units import format_bytes

IDLE_SECONDS = 60.0
"""Without a task for so long the training process ends: it holds most of the device's memory, and the next task can
wait for another."""

TRAINING_LOG = "training.log"
"""In the kit: what happened to the device's tasks, in full."""


class FleetExecutor(Executor):  # type: ignore[misc]  # NVFlare is not typed
    def __init__(self) -> None:
        super().__init__()
        self.session = uuid.uuid4().hex
        """Name of this process; a task given to an earlier one is not done."""
        self._ended = threading.Event()
        self._folder: Path
        self._link: Link
        self._run = ""
        self._training: TrainingProcess | None = None
        self._spending: Spending
        self._facts: dict[str, Any] = {}
        """As reported when the device was ready."""
        self._spent_up = ""
        """The day on which the owner's limits were reached."""
        self._tasks = 0
        self._busy, self._idle_since = threading.Lock(), math.inf
        self._say: Callable[[str], None] = print
        """To `fleet join`, on the device's own terminal."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            self._folder = Path(fl_ctx.get_workspace().get_root_dir())
            notices, name = Notices(self._folder), fl_ctx.get_identity_name()
            self._say = lambda text: notices.add(name, text, again=0.0)
            fl_ctx.get_engine().client.communicator.timeout = ASK_SECONDS  # NVFlare's own questions; not for 300 s
            self._link = Link(fl_ctx.get_engine().get_cell(), fl_ctx.get_job_id(), self._ended.is_set)
            # Next to NVFlare's own start: loading the data may take minutes.
            threading.Thread(target=self._join, args=(name,), daemon=True).start()
        elif event_type in (EventType.ABORT_TASK, EventType.END_RUN):
            if self._run and not self._ended.is_set():
                self._say(f"{self._run}: ended after {self._tasks} tasks; waiting for a run")
            self._ended.set()
            if self._training is not None:
                self._training.kill()

    # ------------------------------------------------------------ joining

    def _join(self, name: str) -> None:
        try:
            welcome, _ = self._link.insist("hello", Hello(self.session, time.time()).to_dict())
            self._run = str(welcome["run"])
            for size in (self._link.up, self._link.down):
                size.most_seconds = min(size.most_seconds, 3 * float(welcome["heartbeat"]))
            threading.Thread(target=self._heartbeat, args=(float(welcome["heartbeat"]),), daemon=True).start()
            self._say(f"{self._run}: loading the data")
            self._prepare(name, welcome)
            self._link.insist("ready", self._facts | {"session": self.session})
            self._say(f"{self._run}: takes part with {self._facts['samples']} samples; waiting for a task")
        except (LinkDown, Refusal) as error:
            self.logger.error(f"cannot join the run: {error}")
        except (Cos2pError, OSError) as error:
            self._note(f"cannot take part: {error}")
            self._link.insist("unfit", CannotTakePart(self.session, outward(error)).to_dict())

    def _prepare(self, name: str, welcome: Mapping[str, Any]) -> None:
        """The training process compares the recipe with the owner's word before it looks at the data."""
        device, owner, recipe = DeviceFile.read(self._folder), OwnerFile.read(self._folder), welcome["recipe"]
        remembered_file(self._folder, self._run)
        self._spending = Spending(self._folder, owner.spend)
        setup = Setup(
            **vars(device) | {"memory": owner.smaller_memory(device.memory)},
            name=name,
            recipe=recipe,
            config=welcome["config"],
            classes=welcome["classes"],
            root=str(self._folder / "data"),
            report=recipe["fleet"].get("reports") == "full" and owner.send.report != "none",
            owner=owner.model_dump(mode="json"),
            kit=str(self._folder),
            run=self._run,
        )
        self._training = TrainingProcess(setup, self._folder / TRAINING_LOG, self._ended.is_set)
        found = self._training.start()
        self._idle_since = time.monotonic()
        if found["no_base"]:
            self._note(f"--base {device.base} is of no use to this run, which sends its own: {found['no_base']}")
        own = found["rows"], found["base"], found["texts"]
        facts = JoinRequest(found["samples"], found["test_samples"], found["memory"], device.flops, *own)
        self._facts = facts.to_dict()

    def _note(self, text: str) -> None:
        """Into the device's own log: all of it, since it stays here."""
        self.logger.error(text)
        with suppress(OSError):  # the disk may be what is wrong
            self._say(text)
            with (self._folder / TRAINING_LOG).open("a", encoding="utf-8") as log:
                log.write(f"{datetime.now(timezone.utc).isoformat(timespec='seconds')} {text}\n")

    def _heartbeat(self, seconds: float) -> None:
        while not self._ended.wait(seconds):
            try:
                self._link.ask("heartbeat", Heartbeat(self.session).to_dict(), idle=seconds)
                if self._spent_up and self._spent_up != today():  # a new day: it has something to give again
                    self._link.ask("ready", self._facts | {"session": self.session}, idle=seconds)
                    self._spent_up = ""
            except (LinkDown, Refusal):
                pass  # the next one may come through
            self._rest()

    def _rest(self) -> None:
        if self._training is None or time.monotonic() - self._idle_since < IDLE_SECONDS:
            return
        if self._busy.acquire(blocking=False):
            self._training.stop()
            self._busy.release()

    # ------------------------------------------------------------ a task

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        try:
            with self._busy:
                answer = self._do(json.loads(shareable["notice"]))
                self._idle_since = time.monotonic()
        except (Cos2pError, OSError) as error:
            self._note(f"the task is not done: {error}")
            answer = Answer(failure=outward(error)).to_dict()
            if isinstance(error, OwnerRefused):
                self._spent_up = today()
        reply = make_reply(ReturnCode.OK)
        reply["answer"] = json.dumps(answer)
        return reply

    def _do(self, order: dict[str, Any]) -> dict[str, Any]:
        if order.get("session") != self.session or self._training is None:
            return Answer(failure="the task was given to an earlier process of this device").to_dict()
        notice = Notice.from_dict(order)
        spool, spending = clean(self._folder / "spool"), self._spending
        remembered = remembered_file(self._folder, self._run)
        remembered.parent.mkdir(exist_ok=True)
        spending.check_seconds()
        spending.check_transfer(notice.size)
        spending.check_disk(notice.size, _held(remembered.parent))
        began = time.monotonic()
        task = self._fetch(notice, spool / "task")
        spending.add(size=notice.size)
        fetched = time.monotonic()
        self._tasks += 1
        task_name = f"{self._run}: task {self._tasks}"
        self._say(f"{task_name}: training ({format_bytes(notice.size)} received)")
        job = Job(str(task), str(spool / "update"), str(remembered))
        outcome = self._training.train(job, spending.seconds_left())
        trained = time.monotonic()
        spending.add(seconds=trained - fetched)
        if outcome.failure:
            self._say(f"{task_name}: not done: {outcome.failure}; waiting")
            return outcome.to_dict()
        spending.check_transfer((spool / "update").stat().st_size)
        spending.check_disk(0, _held(spool) + _held(remembered.parent))
        sent = self._send(notice.task, spool / "update")
        spending.add(size=sent.size)
        self._say(f"{task_name}: trained in {trained - fetched:.1f} s, sent {format_bytes(sent.size)}; waiting")
        seconds = {"download": fetched - began, "training": trained - fetched, "upload": time.monotonic() - trained}
        rates = {"down_rate": self._link.down.rate, "up_rate": self._link.up.rate}
        return Answer(sent.to_dict(), numbers={**outcome.numbers, **seconds, **rates}).to_dict()

    def _fetch(self, notice: Notice, path: Path) -> Path:
        incoming = Incoming(path, notice, notice.size)
        while incoming.received < notice.size:
            chunk = self._pull(notice, incoming.received)
            if not chunk:
                raise UpdateRefused(f"the task ended at byte {incoming.received} of {notice.size}")
            incoming.write(incoming.received, chunk)
        return incoming.close()

    def _send(self, task: str, path: Path) -> Notice:
        notice = Notice(task, path.stat().st_size, digest_of_file(path))
        offset = 0
        with path.open("rb") as file:
            while offset < notice.size:
                file.seek(offset)
                offset = self._push(notice, offset, file.read(self._link.up.bytes))
        return notice

    def _pull(self, notice: Notice, offset: int) -> bytes:
        """One chunk of a task. How long it took decides the size of the next; one that got lost is asked for anew."""
        size, began = self._link.down, time.monotonic()
        head = {"task": notice.task, "offset": offset, "most": size.bytes}
        _, chunk = self._link.insist("pull", head, failed=size.failed)
        size.moved(len(chunk), time.monotonic() - began, self._link.round_trip)
        return chunk

    def _push(self, notice: Notice, offset: int, chunk: bytes) -> int:
        """One chunk of an update; returns how many bytes of it the server has."""
        size, began = self._link.up, time.monotonic()
        answer, _ = self._link.insist("push", notice.to_dict() | {"offset": offset}, chunk, failed=size.failed)
        size.moved(len(chunk), time.monotonic() - began, self._link.round_trip)
        return int(answer["received"])


def _held(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
