"""NVFlare's side of the server: its callbacks go to the driver, the driver's offers become NVFlare tasks.

Runs in the server's job process. A task of NVFlare's carries only a notice; the client fetches the payload chunk by
chunk, and sends the update back the same way before it answers.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask
from nvflare.apis.controller_spec import Task as FlareTask
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from cos2p import strict_json
from cos2p.errors import UpdateRefused
from cos2p.fleet.messages import JoinRequest
from cos2p.fleet.notices import FORBIDDEN, REVOKED, NoticeReader
from cos2p.fleet.nvflare.admin_session import POLL_SECONDS
from cos2p.fleet.nvflare.link import Answer, serve
from cos2p.fleet.server.driver import Driver
from cos2p.fleet.server.inbox import Answered, measured_numbers
from cos2p.fleet.server.served_run import ServedRun, read_recipe
from cos2p.fleet.server.transfers import Transfers
from cos2p.fleet.spool import Notice
from cos2p.fleet.wire import CHUNK_BYTES, HEAD_VALUES, Head

TASK = "train"
ROLL_CALL_SECONDS = 1.0
POLLS_A_SECOND = 100.0
"""Questions a second of all devices that wait for a task: a tenth of the server's core (docs/results/growth.md)."""
SKEW_SECONDS = 300.0
"""Clocks of two machines that differ by more are worth a word."""


class FleetController(Controller):  # type: ignore[misc]  # NVFlare is not typed
    def __init__(self, run: str, expected: list[str]) -> None:
        super().__init__()
        self.run, self.expected = run, set(expected)
        self._standing: dict[str, FlareTask] = {}
        self._lock = threading.Lock()
        self._transfers: Transfers
        self._notices: NoticeReader
        self._cut_off: set[str] = set()
        """Tokens of revoked kits."""
        self._served: ServedRun
        self._driver: Driver | None = None

    # ------------------------------------------------------------ NVFlare calls

    def start_controller(self, fl_ctx: FLContext) -> None:
        # A task that is sent again is listed twice in NVFlare 2.9.0; removing it the second time must not end the
        # thread that watches over all tasks.
        self.communicator._client_task_map = _Tolerant()
        workspace = fl_ctx.get_workspace()
        root = Path(workspace.get_root_dir())
        recipe = read_recipe(Path(workspace.get_app_config_dir(fl_ctx.get_job_id())) / "recipe.json")
        self._served = ServedRun(root / "runs" / self.run, recipe, self.expected)
        self._transfers = Transfers(root / "spool")
        self._notices = NoticeReader(root)
        self._engine.register_app_command("cos2p", self._command)
        self._runner = fl_ctx.get_prop(FLContextKey.RUNNER)

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        def stopped() -> bool:
            return bool(abort_signal.triggered)

        threading.Thread(target=self._call_the_roll, args=(stopped,), daemon=True).start()
        self._served.host(self, self._transfers, self._let_clients_in, stopped)
        self.cancel_all_tasks()
        if self._served.state != "paused":
            self._served.wait_for_pickup(stopped)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        pass

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        self._refuse(client.name, "", "an answer to a task that was never given, or is closed")

    def _call_the_roll(self, stopped: Any) -> None:
        """Without this the job process never learns of clients that came back."""
        while not stopped():
            self._engine.sync_clients_from_main_process()
            self._runner.config.task_request_interval = max(POLL_SECONDS, len(self._registered()) / POLLS_A_SECOND)
            if self._driver is not None:
                self._read_notices(self._driver)
            time.sleep(ROLL_CALL_SECONDS)

    def _read_notices(self, driver: Driver) -> None:
        """Kits and messages that the server's own process did not let in."""
        for client, reason in self._notices.read():
            if reason == REVOKED:
                self._cut_off |= {token for token, own in self._registered().items() if own.name == client}
            if reason.startswith(FORBIDDEN):
                driver.exclude(client, reason)
            driver.refused(client, "", reason)

    # ------------------------------------------------------------ the driver calls

    def offer(self, client: str, notice: Notice) -> None:
        assert self._driver is not None
        order = Shareable()
        order["notice"] = json.dumps(notice.to_dict() | {"session": self._driver.presence.session(client)})
        task = FlareTask(TASK, order, props={"task": notice.task}, timeout=0, result_received_cb=self._answered)
        with self._lock:
            self._standing[client] = task
        with self._engine.new_context() as fl_ctx:
            self.send(task, fl_ctx, targets=[client])

    def withdraw(self, client: str) -> None:
        with self._lock:
            task = self._standing.pop(client, None)
        if task is not None:
            self.cancel_task(task)

    def _answered(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        """A client finished; its name is NVFlare's, by the token, not the answer's."""
        assert self._driver is not None
        client, result = client_task.client.name, client_task.result
        client_task.result = None
        with self._lock:
            given = self._standing.get(client)
            if given is None or given is not client_task.task:  # withdrawn meanwhile
                return
            del self._standing[client]
        task = str(given.props["task"])
        given.data = Shareable()
        try:
            answer = strict_json.loads(str(result.get("answer") or "{}"), HEAD_VALUES)
            if result.get_return_code() != ReturnCode.OK or not isinstance(answer, dict) or not answer:
                answer = {"failure": f"the device's process answered {result.get_return_code()}"}
            sent = Notice.from_dict(answer["sent"]) if "sent" in answer else None
        except (ValueError, UpdateRefused) as error:
            self._refuse(client, task, f"its answer cannot be read: {error}")
            answer, sent = {"failure": "its answer could not be read"}, None
        self._driver.answered(
            Answered(
                client,
                task,
                sent,
                str(answer.get("failure", ""))[:1000],
                answer.get("out_of_memory") is True,
                measured_numbers(answer.get("numbers")),
                answer.get("cache_miss") is True,
            )
        )

    # ------------------------------------------------------------ clients ask

    def _let_clients_in(self, driver: Driver) -> None:
        self._driver = driver
        handlers = {"hello": self._hello, "ready": self._ready, "heartbeat": self._heartbeat, "unfit": self._unfit}
        payloads = {"pull": self._pull, "push": self._push}
        serve(self._engine.get_cell(), self._known, handlers | payloads, self._transfers.count)

    def _registered(self) -> dict[str, Client]:
        return dict(self._engine.client_manager.clients)

    def _known(self) -> dict[str, Client]:
        """Those that are served: not the kits that were revoked while the job runs, nor who was excluded from it."""
        excluded = self._driver.excluded if self._driver is not None else {}
        return {
            token: client
            for token, client in self._registered().items()
            if token not in self._cut_off and client.name not in excluded
        }

    def _hello(self, client: str, head: Head, body: memoryview) -> Answer:
        assert self._driver is not None
        self._driver.hello(client, _session(head))
        self._compare_clocks(client, head.get("clock"))
        heartbeat = min(10.0, max(0.5, self._driver.recipe.fleet.heartbeat_seconds / 6))
        return {
            "run": self.run,
            "recipe": self._driver.recipe.model_dump(mode="json"),
            "config": self._driver.config.to_dict(),
            "classes": list(self._served.classes.names),
            "heartbeat": heartbeat,
        }, b""

    def _compare_clocks(self, client: str, clock: object) -> None:
        """A clock that is off makes certificates invalid before their time, or after it."""
        if isinstance(clock, int | float) and abs(skew := clock - time.time()) > SKEW_SECONDS:
            way = "ahead of" if skew > 0 else "behind"
            self._refuse(client, "", f"its clock is {abs(skew):.0f} s {way} the server's; it takes part all the same")

    def _ready(self, client: str, head: Head, body: memoryview) -> Answer:
        assert self._driver is not None
        self._driver.ready(client, _session(head), JoinRequest.from_dict(head))
        return {}, b""

    def _heartbeat(self, client: str, head: Head, body: memoryview) -> Answer:
        assert self._driver is not None
        self._driver.heartbeat(client, _session(head))
        return {}, b""

    def _unfit(self, client: str, head: Head, body: memoryview) -> Answer:
        assert self._driver is not None
        self._driver.unfit(client, str(head.get("reason"))[:1000])
        return {}, b""

    def _pull(self, client: str, head: Head, body: memoryview) -> Answer:
        with self._checked(client, head):
            chunk = self._transfers.fetch(client, str(head.get("task")), _offset(head), _most(head))
        return {}, chunk

    def _push(self, client: str, head: Head, body: memoryview) -> Answer:
        with self._checked(client, head):
            received = self._transfers.push(client, Notice.from_dict(head), _offset(head), body)
        return {"received": received}, b""

    @contextmanager
    def _checked(self, client: str, head: Head) -> Iterator[None]:
        """A chunk is a sign of life. What is refused is written down; whoever called answers the client."""
        assert self._driver is not None
        self._driver.heartbeat(client)
        try:
            yield
        except UpdateRefused as refusal:
            self._refuse(client, str(head.get("task"))[:100], str(refusal))
            raise

    def _refuse(self, client: str, task: str, reason: str) -> None:
        if self._driver is not None:
            self._driver.refused(client, task, reason)

    # ------------------------------------------------------------ the user asks

    def _command(self, topic: str, data: Any, fl_ctx: FLContext) -> dict[str, Any]:
        data = data if isinstance(data, dict) else {}
        match data.get("verb"):
            case "report":
                return self._served.report(str(data.get("life")), int(data.get("offset", 0)))
            case "fetch":
                return self._served.chunk(str(data.get("name")), int(data.get("offset", 0)))
            case "pause" if self._driver is not None:
                self._driver.pause()
            case "end" if self._driver is not None:
                self._driver.end("the user ended it")
            case "fetched":
                self._served.fetched()
        return {}


def _session(head: Head) -> str:
    """A client's process, as it names itself: kept, so no longer than a name."""
    return str(head.get("session"))[:64]


def _offset(head: Head) -> int:
    offset = head.get("offset")
    if not isinstance(offset, int) or offset < 0:
        raise UpdateRefused(f"{offset!r} is no offset")
    return offset


def _most(head: Head) -> int:
    """Bytes that a client wants in one answer: its link may be slow."""
    most = head.get("most", CHUNK_BYTES)
    if not isinstance(most, int) or most < 1:
        raise UpdateRefused(f"{most!r} is no size of a chunk")
    return most


class _Tolerant(dict[str, Any]):
    """A dict whose `pop` does not mind a missing key."""

    def pop(self, key: str, default: Any = None) -> Any:
        return super().pop(key, default)
