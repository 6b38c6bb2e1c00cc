"""A wire between a device and the server that can be counted, slowed down and cut."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import suppress

from cos2p.fleet.kit import Kit, server_address


class Wire:
    """Listens on a port of its own and passes everything on. `rate` in bytes per second and direction; 0: unlimited."""

    def __init__(self, kit: Kit, rate: float = 0.0) -> None:
        self.rate, self.up, self.down = rate, 0, 0
        self._target = server_address(kit)
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()
        self._redirect(kit)

    def _redirect(self, kit: Kit) -> None:
        path = kit.startup / "fed_client.json"
        values = json.loads(path.read_text())
        values["servers"][0]["service"]["target"] = f"127.0.0.1:{self._listener.getsockname()[1]}"
        path.write_text(json.dumps(values))

    def cut(self) -> None:
        """Every connection breaks; new ones are let through."""
        with self._lock:
            ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            with self._lock:
                self._ends += [near, far]
            for source, sink, name in ((near, far, "up"), (far, near, "down")):
                threading.Thread(target=self._pump, args=(source, sink, name), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, name: str) -> None:
        with suppress(OSError):
            while piece := source.recv(2**14):
                if self.rate:
                    time.sleep(len(piece) / self.rate)
                with self._lock:
                    setattr(self, name, getattr(self, name) + len(piece))
                sink.sendall(piece)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
