"""The server's transfers: payloads going out and coming in, for many clients at once.

Called from the network's threads while the run goes on in its own. Holds files and sizes, no decisions: who may fetch
what, and how large an answer may be, was said when the task was given.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cos2p.errors import UpdateRefused
from cos2p.fleet.spool import Incoming, LinkCounts, Notice, Outgoing, clean, header_bytes
from cos2p.fleet.wire import CHUNK_BYTES

T = TypeVar("T")


class Transfers:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._out, self._in = clean(folder / "out"), clean(folder / "in")
        self._lock = threading.Lock()
        self._outgoing: dict[str, Outgoing] = {}
        self._limits: dict[str, int] = {}
        self._incoming: dict[str, Incoming] = {}
        self.traffic = LinkCounts()

    # ------------------------------------------------------------ what the run says

    def put(self, client: str, task: str, write: Callable[[Path], object], limit: int) -> Notice:
        """Have a task ready for a client, in the file that `write` fills.

        The one before it, and whatever came as its answer, is void.
        """
        with self._lock:
            self._void(client)
        outgoing = Outgoing(self._out / client, task, write)  # others need not wait for a large one
        with self._lock:
            self._outgoing[client] = outgoing
            self._limits[client] = limit
            return self._outgoing[client].notice

    def void(self, client: str) -> None:
        with self._lock:
            self._void(client)

    def close(self) -> None:
        with self._lock:
            for client in {*self._outgoing, *self._incoming}:
                self._void(client)

    def take(self, client: str, notice: Notice, read: Callable[[Path], T]) -> T:
        """The value that `read` makes of the complete answer to the client's task, whose file is then gone.

        UpdateRefused if it is not complete, or not what was announced.
        """
        with self._lock:
            incoming = self._incoming.pop(client, None)
        if incoming is None or incoming.notice != notice:
            if incoming is not None:
                incoming.drop()
            raise UpdateRefused("an answer was announced, but its bytes did not come")
        try:
            return read(incoming.close())
        finally:
            incoming.drop()

    def count(self, client: str, received: int, sent: int) -> None:
        self.traffic.add(client, wire_up=received, wire_down=sent)

    # ------------------------------------------------------------ what clients ask

    def fetch(self, client: str, task: str, offset: int, most: int = CHUNK_BYTES) -> bytes:
        """A chunk of the client's own task, of at most this many bytes."""
        with self._lock:
            outgoing = self._outgoing.get(client)
            if outgoing is None or outgoing.notice.task != task:
                raise UpdateRefused(f"{task!r} is not a task of {client}")
            chunk = outgoing.read(offset, most)
            self.traffic.add(client, tensors_down=outgoing.tensors_to(offset + len(chunk)))
            return chunk

    def push(self, client: str, notice: Notice, offset: int, chunk: memoryview) -> int:
        """A chunk of the client's answer to its own task; returns the bytes that are here."""
        with self._lock:
            outgoing = self._outgoing.get(client)
            if outgoing is None or outgoing.notice.task != notice.task:
                raise UpdateRefused(f"{client} answers {notice.task!r}, a task that it does not have")
            incoming = self._incoming.get(client)
            if incoming is None or incoming.notice != notice:
                if incoming is not None:
                    incoming.drop()
                incoming = Incoming(self._in / client, notice, self._limits[client])
                self._incoming[client] = incoming
            fresh = incoming.received == 0
            before, received = incoming.received, incoming.write(offset, chunk)
            self.traffic.add(client, tensors_up=max(0, received - before - (header_bytes(chunk) if fresh else 0)))
            return received

    def _void(self, client: str) -> None:
        for held in (self._outgoing.pop(client, None), self._incoming.pop(client, None)):
            if held is not None:
                held.drop()
        self._limits.pop(client, None)
