"""How many devices does one server carry? Its real kit, TLS and protocol; devices that sleep instead of training.

    python -m benchmarks.connections [--devices 25 50 100 200] [--rounds 3] [--seconds 5]

Each size is a fleet of its own: all connect, wait for twenty seconds, and take part in a run of `fedavg`, in whose
rounds every device gets the whole of a small model, sleeps for `--seconds` and sends noise. A device has the two
connections of a real one (NVFlare's client, and the process of its run) and asks what that asks, as often, but many are
threads of one process. Of the server: processor time and memory of its process and of the run's; the devices take the
other core.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import tempfile
import threading
import time
import uuid
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReservedTopic, ReturnCode, ServerCommandKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.sec.authn import set_add_auth_headers_filters
from nvflare.fuel.utils.config_service import ConfigService
from nvflare.private.admin_defs import Message as Command
from nvflare.private.defs import (
    CellMessageHeaderKeys,
    ClientType,
    RequestHeader,
    SpecialTaskName,
    TaskConstant,
    new_cell_message,
)
from nvflare.private.fed.authenticator import Authenticator
from nvflare.private.fed.utils.fed_utils import nvflare_fobs_initialize
from nvflare.private.scheduler_constants import ShareableHeader

from cos2p.fleet.admin.follow import run_on_fleet
from cos2p.fleet.admin.local import make_local_fleet
from cos2p.fleet.admin.machines import Machine, wait_for_port
from cos2p.fleet.kit import Kit, server_address
from cos2p.fleet.messages import Answer, Heartbeat, Hello, JoinRequest
from cos2p.fleet.nvflare.admin_session import POLL_SECONDS, AdminSession
from cos2p.fleet.nvflare.link import Link
from cos2p.fleet.nvflare.start import HEARTBEAT_SECONDS
from cos2p.fleet.spool import Notice, digest_of
from cos2p.fleet.wire import ASK_SECONDS, CHUNK_BYTES
from cos2p.messages.task import Task, Update
from cos2p.recipe import Recipe

IDLE_SECONDS = 20.0
SAMPLES = 4
asked: Counter[str] = Counter()
"""Questions of this process's devices that were answered."""


def recipe(devices: int, rounds: int) -> Recipe:
    return Recipe.parse(
        {
            "name": "connections",
            "model": {"size": "vit-nano", "depth": 2},
            "data": {"source": "digits", "test_samples": 60},
            "fleet": {
                "devices": [{"preset": "laptop", "name": "dev", "count": devices, "rate": 1.0, "batch": 4}],
                "heartbeat_seconds": 60.0,
            },
            "schedule": {"rounds": rounds, "evaluate_every": 1000},
            "method": {"name": "fedavg"},
            "robust": {"suspicion": "off"},  # noise is suspicious
        }
    )


class Sleeper:
    """A device, as the server sees it."""

    def __init__(self, kit: Kit, seconds: float) -> None:
        self.kit, self.seconds, self.jobs = kit, seconds, list[str]()
        self.session, self.context = uuid.uuid4().hex, FLContext()
        for key, value in ((ReservedKey.FQSN, kit.name), (ReservedKey.IS_LEAF, True)):
            self.context.set_prop(key, value, private=False, sticky=False)

    def enter(self) -> None:
        host, _ = server_address(self.kit)
        self.cell = self._cell(self.kit.name)
        names = ("rootCA.pem", "client.key", "client.crt")
        authority, key, certificate = (str(self.kit.startup / name) for name in names)
        self.auth = Authenticator(
            self.cell, "local", self.kit.name, ClientType.REGULAR, host, True, authority, key, certificate,
            msg_timeout=ASK_SECONDS, retry_interval=2.0, site_config={"machine": self.kit.name},
        ).authenticate(self.context, Signal())  # fmt: skip
        set_add_auth_headers_filters(self.cell, self.kit.name, *self.auth[:3])
        self.cell.register_request_cb(channel="admin", topic="*", cb=self._command)
        threading.Thread(target=self._beat, daemon=True).start()

    def _cell(self, name: str) -> Cell:
        host, port = server_address(self.kit)
        files = {"ca_cert": "rootCA.pem", "client_cert": "client.crt", "client_key": "client.key"}
        credentials = {key: str(self.kit.startup / file) for key, file in files.items()}
        credentials["connection_security"] = "mtls"
        identities = {"server": host, self.kit.name: self.kit.name}
        cell = Cell(
            name, f"http://{host}:{port}", True, credentials,
            auth_identity=self.kit.name, auth_identity_map=identities,
        )  # fmt: skip
        cell.start()
        return cell

    def _beat(self) -> None:
        while True:
            with suppress(Exception):  # a server that is late
                headers = {CellMessageHeaderKeys.PROJECT_NAME: "local", CellMessageHeaderKeys.JOB_IDS: self.jobs}
                self._ask(self.cell, "server", "task", "heart_beat", Shareable(), headers)
            time.sleep(HEARTBEAT_SECONDS)

    def _ask(self, cell: Cell, target: str, channel: str, topic: str, what: Shareable, headers: Any = None) -> Any:
        what.set_peer_context(self.context)
        what.set_peer_props(self.context.get_all_public_props())
        request = new_cell_message(dict(headers or {}), what)
        reply = cell.send_request(channel, topic, target, request, timeout=ASK_SECONDS, optional=True)
        code = reply.get_header(MessageHeaderKey.RETURN_CODE)
        asked[topic if code == "ok" else f"{topic} {code}"] += 1
        return reply.payload if code == "ok" else None

    def _command(self, request: Message) -> Message:
        command, body = request.payload, Shareable()
        if command.topic == "scheduler.check_resource":
            body.set_header(ShareableHeader.IS_RESOURCE_ENOUGH, True)
            body.set_header(ShareableHeader.RESOURCE_RESERVE_TOKEN, "none")
        elif command.topic == "train.start_job" and not self.jobs:
            self.jobs.append(command.get_header(RequestHeader.JOB_ID))
            threading.Thread(target=self._take_part, args=(self.jobs[0],), daemon=True).start()
        return new_cell_message({}, Command(f"reply_{command.topic}", body if body else "OK"))

    # ------------------------------------------------------------ in a run

    def _take_part(self, job: str) -> None:
        cell, here = self._cell(f"{self.kit.name}.{job}"), f"server.{job}"
        self.context.set_prop(ReservedKey.RUN_NUM, job, private=False, sticky=False)
        set_add_auth_headers_filters(cell, self.kit.name, *self.auth[:3])
        sync = Shareable()
        sync.set_header(ReservedHeaderKey.TOPIC, ReservedTopic.SYNC_RUNNER)
        while self._ask(cell, here, "aux_communication", ReservedTopic.SYNC_RUNNER, sync) is None:
            time.sleep(0.5)
        link = Link(cell, job, lambda: False)
        welcome = self._say(link, "hello", Hello(self.session, time.time()).to_dict())[0]
        threading.Thread(target=self._job_beat, args=(link, float(welcome["heartbeat"])), daemon=True).start()
        self._say(link, "ready", JoinRequest(SAMPLES, 0).to_dict() | {"session": self.session})
        while True:
            task = self._ask(cell, here, "server_command", "get_task", Shareable())
            name = None if task is None else task.get_header(ServerCommandKey.TASK_NAME)
            if name == SpecialTaskName.END_RUN:
                return
            if name == "train":
                self._do(cell, here, link, task)
            time.sleep(POLL_SECONDS if task is None else task.get_header(TaskConstant.WAIT_TIME, POLL_SECONDS))

    def _say(self, link: Link, topic: str, head: dict[str, Any], body: bytes = b"") -> Any:
        answer = link.insist(topic, head, body)
        asked[topic] += 1
        return answer

    def _job_beat(self, link: Link, seconds: float) -> None:
        while True:
            time.sleep(seconds)
            with suppress(Exception):
                link.ask("heartbeat", Heartbeat(self.session).to_dict(), idle=seconds)
                asked["heartbeat"] += 1

    def _do(self, cell: Cell, here: str, link: Link, given: Shareable) -> None:
        notice, data = Notice.from_dict(json.loads(given["notice"])), b""
        while len(data) < notice.size:
            head = {"task": notice.task, "offset": len(data), "most": CHUNK_BYTES}
            data += self._say(link, "pull", head)[1]
        task = Task.from_bytes(data)
        time.sleep(self.seconds)
        noise = {name: 1e-4 * torch.randn_like(tensor) for name, tensor in task.weights.items()}
        order = task.order
        update = Update(order.client, order.task, order.version, order.spec, noise, SAMPLES).to_bytes()
        sent = Notice(notice.task, len(update), digest_of(update))
        for offset in range(0, len(update), CHUNK_BYTES):
            self._say(link, "push", sent.to_dict() | {"offset": offset}, update[offset : offset + CHUNK_BYTES])
        number = given.get_header(FLContextKey.TASK_ID)
        check = Shareable()
        check.set_header(FLContextKey.TASK_ID, number)
        check.set_header(ReservedHeaderKey.TOPIC, ReservedTopic.TASK_CHECK)
        self._ask(cell, here, "aux_communication", ReservedTopic.TASK_CHECK, check)
        result = make_reply(ReturnCode.OK)
        result.set_cookie_jar(given.get_cookie_jar())
        result.set_header(FLContextKey.TASK_NAME, "train")
        result["answer"] = json.dumps(Answer(sent.to_dict(), numbers={"download": 0.0}).to_dict())
        self._ask(cell, here, "server_command", "submit_update", result, {CellMessageHeaderKeys.PROJECT_NAME: "local"})


def play(folders: list[str], seconds: float, line: Any) -> None:
    """A process of devices: says when all are in, and how much was asked whenever it is asked."""
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    ConfigService.initialize({}, [str(Path(folders[0]) / "local")])
    nvflare_fobs_initialize()
    kits = [Kit.open(folder, "device") for folder in folders]
    for kit in kits:
        Sleeper(kit, seconds).enter()
    line.send("in")
    while line.recv():
        line.send(dict(asked))


class Meter:
    """Processor time, memory and sockets of the server's processes."""

    def __init__(self, server: Machine) -> None:
        self.server, self.at = server, time.monotonic()
        self.cpu = self._cpu()

    def _parts(self) -> dict[str, psutil.Process]:
        job = "nvflare.private.fed.app.server.runner_process"
        return {"job" if job in p.cmdline() else "server": p for p in self.server.processes() if "-m" in p.cmdline()}

    def _cpu(self) -> dict[str, float]:
        return {name: sum(p.cpu_times()[:2]) for name, p in self._parts().items()}

    def spent(self) -> dict[str, float]:
        return {name: value - self.cpu.get(name, 0.0) for name, value in self._cpu().items()}

    def read(self) -> dict[str, Any]:
        parts, seconds, spent = self._parts(), time.monotonic() - self.at, self.spent()
        found: dict[str, Any] = {"seconds": round(seconds, 1)}
        for name, process in parts.items():
            found[f"{name} core"] = round(spent[name] / seconds, 3)
            found[f"{name} MB"] = round(process.memory_info().rss / 1e6, 1)
        sockets = parts["server"].net_connections("tcp")
        found["connections"] = sum(c.status == "ESTABLISHED" and bool(c.raddr) for c in sockets)
        return found


def measure(devices: int, rounds: int, seconds: float, processes: int) -> None:
    with tempfile.TemporaryDirectory(prefix="cos2p-connections-") as name:
        folder, chosen = Path(name), recipe(devices, rounds)
        fleet = make_local_fleet(folder / "kits", chosen)
        fleet.server.start()
        workers, lines = [], []
        try:
            wait_for_port(*server_address(fleet.server.kit), 120)
            time.sleep(5)
            print(json.dumps({"devices": devices, "phase": "alone"} | Meter(fleet.server).read()), flush=True)
            meter, kits = Meter(fleet.server), [str(machine.kit.folder) for machine in fleet.devices.values()]
            spawn = multiprocessing.get_context("spawn")
            for share in (kits[n::processes] for n in range(processes)):
                line, theirs = spawn.Pipe()
                workers.append(spawn.Process(target=play, args=(share, seconds, theirs), daemon=True))
                workers[-1].start()
                lines.append(line)

            def questions() -> Counter[str]:
                for line in lines:
                    line.send(True)
                return sum((Counter(line.recv()) for line in lines), Counter())

            for line in lines:
                assert line.recv() == "in"
            admin = AdminSession(fleet.admin)
            while len(admin.clients()) < devices:
                time.sleep(0.5)
            admin.close()
            print(json.dumps({"devices": devices, "phase": "connect"} | meter.read()), flush=True)
            meter, before = Meter(fleet.server), questions()
            time.sleep(IDLE_SECONDS)
            found: dict[str, Any] = {"questions": sum((questions() - before).values())}
            print(json.dumps({"devices": devices, "phase": "idle"} | meter.read() | found), flush=True)
            before = questions()
            over, most = threading.Event(), dict[str, Any]()
            threading.Thread(target=watch, args=(fleet.server, over, most), daemon=True).start()
            names = list(fleet.devices)
            run_on_fleet(chosen, folder / "out", fleet.admin.folder, expected=names, listener=lambda event: None)
            over.set()
            found = {"questions": dict(questions() - before)}
            print(json.dumps({"devices": devices, "phase": "run"} | most | found), flush=True)
            report(devices, folder / "out" / "events.jsonl", seconds)
        finally:
            for worker in workers:
                worker.kill()
            fleet.kill()


def watch(server: Machine, over: threading.Event, most: dict[str, Any]) -> None:
    """The largest share of a core in two seconds, the most memory; and processor seconds from the start."""
    whole = Meter(server)
    while not over.is_set():
        meter = Meter(server)
        over.wait(2)
        with suppress(psutil.Error, KeyError):  # a process that has ended
            most.update({name: max(value, most.get(name, 0)) for name, value in meter.read().items()})
            most["processor seconds"] = {name: round(value, 1) for name, value in whole.spent().items()}


def report(devices: int, log: Path, slept: float) -> None:
    """Seconds of each round: until the last device had its task, and from there until all were merged."""
    events = [json.loads(line) for line in log.read_text().splitlines()]
    began = 0.0
    for number, end in enumerate(event["t"] for event in events if event["kind"] == "aggregated"):
        kinds = {kind: [e["t"] for e in events if e["kind"] == kind and began <= e["t"] <= end] for kind in
                 ("dispatched", "arrived")}  # fmt: skip
        first, last = (kinds["arrived"][0], kinds["arrived"][-1]) if kinds["arrived"] else (0.0, 0.0)
        row = {
            "dispatching": round(kinds["dispatched"][-1] - kinds["dispatched"][0], 2) if kinds["dispatched"] else None,
            "first back": round(first - began - slept, 2), "last back": round(last - began - slept, 2),
            "merging after": round(end - last, 2), "updates": len(kinds["arrived"]),
        }  # fmt: skip
        print(json.dumps({"devices": devices, "round": number + 1} | row), flush=True)
        began = end
    others = Counter(event["kind"] for event in events)
    print(json.dumps({"devices": devices, "events": {k: others[k] for k in ("joined", "left", "failed", "refused")}}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", default=[25, 50, 100, 200])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    for devices in options.devices:
        measure(devices, options.rounds, options.seconds, options.processes)


if __name__ == "__main__":
    main()
