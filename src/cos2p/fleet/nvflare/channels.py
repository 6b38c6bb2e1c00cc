"""Which messages NVFlare's processes take from each other: those that a run needs, and no others.

NVFlare 2.9.0's server passes messages on from one client to another, and its handlers ask whether a message is
authentic, not whether its sender may command (advisories/nvflare-2.9.0-client-relay.md). So every process of a fleet
looks at a message before NVFlare does:

    a device            takes from the server what is listed here, from its own parent or job process anything, and does
                        of commands what a run needs, whoever gives them
    the server          takes from a device what is listed here, for itself and its job alone, and passes nothing on
    the server's job    the same list, once more

The lists say what is allowed: a topic that a new version brings is refused until somebody adds it. Who sent a message
is what the connection's certificate says. NVFlare lets a cell connect under its certificate's name alone, but it
believes what a message says of its origin, and who receives a message can use the signature in it for messages of its
own.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvflare.apis.workspace import Workspace
from nvflare.fuel.f3.cellnet import cell as of_nvflare
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType
from nvflare.fuel.f3.cellnet.identity import get_param, is_mtls_connection
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.private.defs import CellMessageHeaderKeys
from nvflare.private.fed.client.admin import FedAdminAgent

from cos2p.fleet.notices import FORBIDDEN, Notices
from cos2p.fleet.nvflare.link import CHANNEL
from cos2p.fleet.nvflare.provisioning import ADMIN

SERVER = "server"
"""The server's cell; that of its job is `server.JOB`, a device's are `NAME` and `NAME.JOB`."""

LOCAL = "localhost"
"""Whom to name where no certificate does: somebody on this very machine."""

Pair = tuple[str, str]
"""Channel and topic; `*`: any topic."""

_STREAM, _ACK, _ERROR, _DATA = "sm__STREAM", "sm__ACK", "sm__ERROR", "sm__DATA"
_BYE = ("cellnet.channel", "bye")
_ANSWERS: frozenset[Pair] = frozenset({(_STREAM, _ACK), (_STREAM, _ERROR), ("return_only", "*")})
"""To what the receiver has sent itself."""

DEVICE_TO_SERVER = _ANSWERS | {
    ("task", "challenge"),
    ("task", "register regular"),
    ("task", "heart_beat"),
    ("task", "report_job_failure"),
    ("task", "quit"),
    _BYE,
}
DEVICE_TO_JOB = _ANSWERS | {
    (CHANNEL, "*"),  # our own frames, which `link` checks
    ("server_command", "get_task"),
    ("server_command", "submit_update"),
    ("aux_communication", "__sync_runner__"),
    ("aux_communication", "__job_heartbeat__"),
    ("aux_communication", "__task_check__"),
}
ADMIN_TO_SERVER = _ANSWERS | {
    ("task", "challenge"),
    ("task", "register admin"),
    ("hci_channel", "command"),
    ("aux_communication", "ObjectStreamer.Request"),
    ("aux_communication", "ObjectStreamer.Abort"),
    _BYE,
}
SERVER_TO_DEVICE = _ANSWERS | {("admin", "admin"), ("aux_communication", "__end_run__"), _BYE}
COMMANDS = frozenset(
    {
        "scheduler.check_resource",
        "scheduler.cancel_resource",
        "train.deploy",
        "train.start_job",
        "train.notify_job_status",  # by the job's own process
        "train.abort",
        "train.delete_run",
    }
)
"""What a device does for its server of all that `admin:admin` may ask. Not: run shell commands, shut down."""


@dataclass(frozen=True)
class Envelope:
    """What is known of a message before anybody acts on it: first what the connection says, then its sender's word."""

    me: str
    """The cell that got it."""
    peer: str
    """The cell at the other end of the connection."""
    inside: bool
    """The connection is the one between a parent and its job process."""
    certificate: str
    """The name in the certificate of the other end; empty: it showed none."""
    origin: str
    destination: str
    name: str
    """Of the client, as the signature has it."""
    channel: str
    topic: str
    request: bool = True
    """Not an answer."""
    offers_line: bool = False
    """It asks the receiver to connect to an address that it names."""

    @property
    def sender(self) -> str:
        """Whose doing it is: by the certificate where devices connect, by what a checked message says elsewhere."""
        if self.certificate and machine(self.me) == SERVER:
            return self.certificate
        passed_on = machine(self.me) != SERVER or self.me.startswith(f"{self.peer}.")
        return (passed_on and machine(self.origin)) or LOCAL


def objection(message: Envelope) -> str:
    """Why a message is refused; empty: it is not."""
    if message.offers_line:
        return "it names an address to connect to"
    if (message.channel, message.topic) == _BYE and message.origin != message.peer:
        return "a farewell in the name of another"
    own = machine(message.me)
    if message.inside:
        return _objection_inside(message, own)
    if not message.certificate:
        return f"{message.peer} shows no certificate"
    return _objection_at_server(message) if own == SERVER else _objection_at_device(message, own, through=SERVER)


def _objection_inside(message: Envelope, own: str) -> str:
    """What a parent passes on is checked as if it had come directly."""
    if machine(message.peer) != own:
        return f"{message.peer} connects where only job processes do"
    if machine(message.origin) == own:
        return ""
    if message.me == own:
        return f"{message.peer} speaks for {message.origin}"
    if own != SERVER:
        return _objection_at_device(message, own, through=own)
    if message.destination != message.me:
        return "only the job itself is spoken to"
    return _unlisted(message, DEVICE_TO_JOB)


def _objection_at_server(message: Envelope) -> str:
    sender, is_admin = message.certificate, message.certificate == ADMIN
    if not is_admin and machine(message.peer) != sender:
        return f"it connects as {message.peer}"
    for claimed in (machine(message.origin), message.name):
        if claimed not in ("", sender, machine(message.peer)):
            return f"it calls itself {claimed}"
    if message.destination == SERVER:
        return _unlisted(message, ADMIN_TO_SERVER if is_admin else DEVICE_TO_SERVER)
    if is_admin or machine(message.destination) != SERVER:
        return "only the server and its job are spoken to"
    return _unlisted(message, DEVICE_TO_JOB)


def _objection_at_device(message: Envelope, own: str, through: str) -> str:
    if message.peer != through or machine(message.origin) != SERVER:
        return "a device is commanded by its server alone"
    if machine(message.destination) != own:
        return "it is for another device"
    return _unlisted(message, SERVER_TO_DEVICE)


def _unlisted(message: Envelope, allowed: frozenset[Pair]) -> str:
    listed = {(message.channel, message.topic), (message.channel, "*")} & allowed
    return "" if listed or not message.request else "not needed in a run"


def machine(cell: str) -> str:
    return cell.partition(".")[0]


# ---------------------------------------------------------------- in NVFlare's processes


class Guard:
    """Stands before every cell of this process."""

    MOST_NOTICES = 20
    """Of one sender in a minute; the log has them all."""

    def __init__(self, kit: Path | None) -> None:
        self._notices = Notices(kit) if kit is not None else None
        self._noticed: dict[str, list[float]] = {}
        self._lock = threading.Lock()

    def wrap(self, process: Callable[..., Any]) -> Callable[..., Any]:
        """The method by which a cell takes a message from a connection."""

        def guarded(cell: Any, endpoint: Any, connection: Any, app_id: int, message: Any) -> Any:
            envelope = read(cell, endpoint, connection, message)
            reason = objection(envelope)
            if not reason:
                return process(cell, endpoint, connection, app_id, message)
            self._refuse(envelope, reason)
            return None

        return guarded

    def _refuse(self, message: Envelope, reason: str) -> None:
        what = f"{message.channel}:{message.topic} to {message.destination} ({reason})"
        text = FORBIDDEN + "".join(c if c.isprintable() else "?" for c in what[:200])
        logging.getLogger(f"{__name__}.guard").error(f"refused {message.sender}: {text}")
        if self._notices is not None and self._is_news(message.sender):
            self._notices.add(message.sender, text, again=0.0)

    def _is_news(self, sender: str) -> bool:
        with self._lock:
            now = time.monotonic()
            recent = [then for then in self._noticed.get(sender, ()) if now - then < 60.0]
            self._noticed[sender] = [*recent, now][: self.MOST_NOTICES]
            return len(recent) < self.MOST_NOTICES


def read(cell: Any, endpoint: Any, connection: Any, message: Any) -> Envelope:
    headers = message.headers if isinstance(message.headers, dict) else {}
    channel, topic = _meaning(headers)
    return Envelope(
        cell.my_info.fqcn,
        endpoint.name,
        *_line(cell, connection),
        _word(headers, MessageHeaderKey.ORIGIN),
        _word(headers, MessageHeaderKey.DESTINATION),
        _word(headers, CellMessageHeaderKeys.CLIENT_NAME),
        channel,
        topic,
        request=headers.get(MessageHeaderKey.MSG_TYPE) not in (MessageType.REPLY, MessageType.RETURN),
        offers_line=headers.get(MessageHeaderKey.CONN_URL) is not None,
    )


def _word(headers: dict[str, Any], key: str) -> str:
    """A header's text. What is none is on no list."""
    value = headers.get(key)
    return value if isinstance(value, str) else "" if value is None else f"<{type(value).__name__}>"


def _line(cell: Any, connection: Any) -> tuple[bool, str]:
    """Whether it is a process's own, or that to its parent or child; and the name in the other end's certificate."""
    own = {line.handle for line in (cell.int_listener, cell.bb_int_connector) if line is not None}
    if connection is None or connection.connector.handle in {"Null", *own}:
        return True, ""
    if not is_mtls_connection(connection.connector.params):
        return False, ""
    shown = get_param(connection.get_conn_properties(), DriverParams.PEER_CN)
    return False, "" if shown in (None, "N/A") else str(shown)


def _meaning(headers: dict[str, Any]) -> Pair:
    """Channel and topic of the handler that would get it. A stream carries those of what is in it."""
    pair = (_word(headers, MessageHeaderKey.CHANNEL), _word(headers, MessageHeaderKey.TOPIC))
    if pair == ("task", "register"):
        return "task", f"register {_word(headers, CellMessageHeaderKeys.CLIENT_TYPE)}".strip()
    if pair == (_STREAM, _ACK):
        return _STREAM, _ACK if _own_stream(headers) else f"{_ACK} of another's stream"
    if pair == (_STREAM, _DATA):
        if headers.get(StreamHeaderKey.ERROR_MSG):  # ends a stream of the sender's own
            return _STREAM, _ERROR
        return _word(headers, StreamHeaderKey.CHANNEL), _word(headers, StreamHeaderKey.TOPIC)
    return pair


def _own_stream(headers: dict[str, Any]) -> bool:
    """Numbers of streams can be guessed: only who gets one may confirm it, or have it ended."""
    number = headers.get(StreamHeaderKey.STREAM_ID)
    task = ByteStreamer.tx_task_map.get(number) if isinstance(number, int) else None
    return isinstance(number, int) and (task is None or task.target == headers.get(MessageHeaderKey.ORIGIN))


def install(kit: Path | None) -> None:
    """Before this process makes its first cell."""
    CoreCell.process_message = Guard(kit).wrap(CoreCell.process_message)
    # A job process ends itself over an update that it cannot decode, and over an answer that was too long for a client:
    # any device could have that. Not being one, it gives up the message.
    of_nvflare._is_server_job_cell = lambda info: False
    FedAdminAgent.register_processor = _register_needed(FedAdminAgent.register_processor)
    run_folder = Workspace.get_run_dir
    Workspace.get_run_dir = lambda workspace, job: run_folder(workspace, checked_job(job))


def _register_needed(register: Callable[..., None]) -> Callable[..., None]:
    def registered(agent: Any, processor: Any) -> None:
        if COMMANDS.issuperset(processor.get_topics()):
            register(agent, processor)

    return registered


def checked_job(name: object) -> str:
    """ValueError unless it is a name that NVFlare gives to jobs. It is that of a folder in the kit, which is emptied
    and removed, and the kit has other folders."""
    try:
        known = str(uuid.UUID(str(name))) == str(name)
    except ValueError:
        known = False
    if not known:
        raise ValueError(f"{str(name)[:64]!r} is no job's name")
    return str(name)
