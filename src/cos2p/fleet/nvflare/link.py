"""Frames over NVFlare's cells: a client asks, the server's job process answers.

Who asks is what the transport vouches for. The server's process lets a message pass only under the name in its
connection's certificate (`channels`), and only with a token that NVFlare signed for that name; the token is then looked
up among the job's clients. A frame's own words about its sender are never read.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message
from nvflare.private.defs import CellMessageHeaderKeys

from cos2p.errors import Cos2pError, UpdateRefused
from cos2p.fleet.wire import ChunkSize, Head, pack, unpack

CHANNEL = "cos2p"

Answer = tuple[Mapping[str, Any], bytes]
Handler = Callable[[str, Head, memoryview], Answer]
"""(authenticated client, head, body) → head and body of the answer. The client gets a Cos2pError as its answer."""


class LinkDown(Cos2pError):
    """The server cannot be reached just now."""


class Refusal(Cos2pError):
    """The server said no; asking again would not help."""


def serve(
    cell: Any,
    clients: Callable[[], Mapping[str, Any]],
    handlers: Mapping[str, Handler],
    count: Callable[[str, int, int], None],
) -> None:
    """Answer frames on the job's cell.

    `clients`: token → the client NVFlare registered under it. `count` is called with every exchange: client, bytes of
    the frame received, bytes of the frame sent.
    """

    def answer(message: Message) -> Message:
        handler = handlers.get(str(message.get_header(MessageHeaderKey.TOPIC)))
        if handler is None:
            return _reply({"refused": "no such topic"})
        client = clients().get(message.get_header(CellMessageHeaderKeys.TOKEN))
        if client is None or client.name != message.get_header(CellMessageHeaderKeys.CLIENT_NAME):
            return _reply({"later": "this client is not one of the job's yet"})
        try:
            answer = _reply(*handler(client.name, *unpack(message.payload)))
        except Cos2pError as error:
            answer = _reply({"refused": str(error)})
        count(client.name, len(message.payload), len(answer.payload))
        return answer

    for topic in handlers:
        cell.register_request_cb(channel=CHANNEL, topic=topic, cb=answer)


def _reply(head: Mapping[str, Any], body: bytes = b"") -> Message:
    return make_reply(ReturnCode.OK, "", pack(head, body))


class Link:
    """A client's end."""

    def __init__(self, cell: Any, job: str, stopped: Callable[[], bool]) -> None:
        self._cell, self._stopped = cell, stopped
        self._server = FQCN.join([FQCN.ROOT_SERVER, job])
        self.down, self.up = ChunkSize(), ChunkSize()
        self.round_trip = 60.0
        """Seconds: the quickest answer so far."""

    def ask(self, topic: str, head: Mapping[str, Any], body: bytes | memoryview = b"", idle: float = 60.0) -> Answer:
        """One question. LinkDown if nothing moved for `idle` seconds or the server is away; Refusal if it says no."""
        frame, began = pack(head, body), time.monotonic()
        reply = self._cell.send_request(
            channel=CHANNEL,
            target=self._server,
            topic=topic,
            request=Message(payload=frame),
            timeout=idle,
            optional=True,
        )
        code = reply.get_header(MessageHeaderKey.RETURN_CODE)
        if code != ReturnCode.OK:
            raise LinkDown(f"the server cannot be reached ({code})")
        try:
            answer, content = unpack(reply.payload)
        except (UpdateRefused, TypeError):
            raise LinkDown("the server's answer cannot be read") from None
        if "later" in answer:
            raise LinkDown(str(answer["later"]))
        if "refused" in answer:
            raise Refusal(str(answer["refused"]))
        self.round_trip = min(self.round_trip, time.monotonic() - began)
        return answer, bytes(content)

    def insist(
        self,
        topic: str,
        head: Mapping[str, Any],
        body: bytes | memoryview = b"",
        failed: Callable[[], None] = lambda: None,
    ) -> Answer:
        """Ask until there is an answer or the job ends: a link that is down for an hour costs an hour, no more.

        `failed` is called each time that there was none.
        """
        pause = 0.1
        while True:
            try:
                return self.ask(topic, head, body)
            except LinkDown:
                failed()
                if self._stopped():
                    raise
                # At random within the span, so that devices that lost the server together do not return together.
                time.sleep(random.uniform(pause / 2, pause))
                pause = min(2 * pause, 5.0)
