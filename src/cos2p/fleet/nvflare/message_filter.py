"""The filter before NVFlare's cells: reads a message's envelope, asks `channels`, and names whom it refuses.

NVFlare has no hook that sees every message together with its connection, so a method of its cells is replaced, before
the first cell of a process is made. Three other functions are replaced with it, each for a harm that a message does
which is allowed; tests/fleet/test_private.py guards them all.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
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
from cos2p.fleet.nvflare.channels import ACK, COMMANDS, DATA, ERROR, STREAM, Envelope, Pair, objection


class MessageFilter:
    """Stands before every cell of this process."""

    MOST_NOTICES = 20
    """Notices about one sender in a minute; the log has them all."""

    def __init__(self, kit: Path | None) -> None:
        self._notices = Notices(kit) if kit is not None else None
        self._noticed: dict[str, list[float]] = {}
        self.heard = 0.0
        """When a message came from another machine, by the monotonic clock."""
        self._lock = threading.Lock()

    def wrap(self, process: Callable[..., Any]) -> Callable[..., Any]:
        """The method by which a cell takes a message from a connection."""

        def checked(cell: Any, endpoint: Any, connection: Any, app_id: int, message: Any) -> Any:
            envelope = read(cell, endpoint, connection, message)
            reason = objection(envelope)
            if not reason:
                if not envelope.inside:
                    self.heard = time.monotonic()
                return process(cell, endpoint, connection, app_id, message)
            self._refuse(envelope, reason)
            return None

        return checked

    def _refuse(self, message: Envelope, reason: str) -> None:
        what = f"{message.channel}:{message.topic} to {message.destination}"[:150] + f" ({reason[:100]})"
        text = FORBIDDEN + "".join(c if c.isprintable() else "?" for c in what)
        logging.getLogger(__name__).error(f"refused {message.sender}: {text}")
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
    channel, topic = _meaning(headers, cell.my_info.fqcn)
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


def _meaning(headers: dict[str, Any], me: str) -> Pair:
    """Channel and topic of the handler that would get it. A stream carries those of what is in it."""
    pair = (_word(headers, MessageHeaderKey.CHANNEL), _word(headers, MessageHeaderKey.TOPIC))
    if pair == ("task", "register"):
        return "task", f"register {_word(headers, CellMessageHeaderKeys.CLIENT_TYPE)}".strip()
    if pair == (STREAM, ACK) and headers.get(MessageHeaderKey.DESTINATION) == me:
        return STREAM, ACK if _own_stream(headers) else f"{ACK} of another's stream"
    if pair == (STREAM, DATA):
        if headers.get(StreamHeaderKey.ERROR_MSG):  # ends a stream of the sender's own
            return STREAM, ERROR
        return _word(headers, StreamHeaderKey.CHANNEL), _word(headers, StreamHeaderKey.TOPIC)
    return pair


def _own_stream(headers: dict[str, Any]) -> bool:
    """Numbers of streams can be guessed: only who gets one may confirm it, or have it ended."""
    number = headers.get(StreamHeaderKey.STREAM_ID)
    task = ByteStreamer.tx_task_map.get(number) if isinstance(number, int) else None
    return isinstance(number, int) and (task is None or task.target == headers.get(MessageHeaderKey.ORIGIN))


def install(kit: Path | None) -> MessageFilter:
    """Before this process makes its first cell."""
    installed = MessageFilter(kit)
    CoreCell.process_message = installed.wrap(CoreCell.process_message)
    # A job process ends itself over an update that it cannot decode, and over an answer that was too long for a client:
    # any device could have that. Not being one, it gives up the message.
    of_nvflare._is_server_job_cell = lambda info: False
    FedAdminAgent.register_processor = _register_needed(FedAdminAgent.register_processor)
    run_folder = Workspace.get_run_dir
    Workspace.get_run_dir = lambda workspace, job: run_folder(workspace, checked_job(job))
    return installed


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
