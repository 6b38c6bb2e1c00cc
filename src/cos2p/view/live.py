"""A small server for the live page. It knows two paths, gives away nothing else, and talks only to who may ask.

On 127.0.0.1 anybody on this machine may look, but no web page opened elsewhere: the Host must be ours, or a name that
an attacker points to 127.0.0.1 would read the run. Bound elsewhere, a token is asked for; the printed address has it.
"""

from __future__ import annotations

import gzip
import hmac
import ipaddress
import secrets
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cos2p.errors import Cos2pError, RunError
from cos2p.view.document import OnProgress, Sources, to_json
from cos2p.view.frozen import assemble, content_policy, page_script, page_style

LOOK_SECONDS = 0.5
"""Between two looks at the run's folder, at least."""
REST = 4.0
"""A look that took long is followed by a rest this many times as long, so that watching never slows the run much."""
LARGE = 2048
"""Answers of more bytes than this are compressed."""


@dataclass(frozen=True)
class Document:
    version: str
    text: str
    packed: bytes
    """JSON, compressed."""


class Watch:
    """The document of the folders, made anew when somebody asks and something has changed."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._desk = Sources(folders, live=True)
        self._lock = threading.Lock()
        self._made: Document | None = None
        self._next_look = 0.0
        self._behind = False

    def first_look(self, on_progress: OnProgress) -> None:
        """Says now what is wrong with the folders, not in a browser later."""
        self._desk.refresh(on_progress)
        self._make()

    def document(self) -> Document:
        """Never fails for what happens to the folders meanwhile: then it stays as it was."""
        with self._lock:
            if time.monotonic() >= self._next_look:
                began = time.monotonic()
                self._look()
                took = time.monotonic() - began
                self._next_look = time.monotonic() + max(LOOK_SECONDS, REST * took)
            assert self._made is not None
            return self._made

    def _look(self) -> None:
        try:
            if self._desk.refresh() or self._behind:
                self._behind = True  # until it is made: a failure must not swallow what was read
                self._make()
        except (Cos2pError, OSError):
            pass  # a file half there, or being replaced: the next look will see

    def _make(self) -> None:
        text = to_json(self._desk.document())
        version = text.split('"version":"', 1)[1].split('"', 1)[0]
        self._made = Document(version, text, gzip.compress(text.encode(), compresslevel=1))
        self._behind = False


class LiveServer(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = False

    def __init__(
        self,
        folders: Sequence[Path],
        host: str = "127.0.0.1",
        port: int = 0,
        on_progress: OnProgress = lambda done, total, name: None,
    ) -> None:
        self.watch = Watch(folders)
        self.watch.first_look(on_progress)
        self.host = host
        self.token = "" if is_loopback(host) else secrets.token_urlsafe(24)
        try:
            info = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            self.address_family = info[0]
            super().__init__(info[4][:2], Handler)  # type: ignore[arg-type]
        except (OSError, OverflowError) as error:
            raise RunError(
                f"cannot listen on {host}, port {port} ({getattr(error, 'strerror', None) or error}); "
                "choose another --port (0 takes a free one) or --host"
            ) from None

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        """The address to open; with the token, if one is asked for."""
        name = self.host
        if name in ("0.0.0.0", "::", ""):
            name = socket.gethostname()
        elif ":" in name:
            name = f"[{name}]"
        return f"http://{name}:{self.port}/" + (f"?token={self.token}" if self.token else "")

    def is_ours(self, host_header: str) -> bool:
        """Whether a request was addressed to us by a name of ours. With a token, the token decides."""
        if self.token:
            return True
        try:
            parts = urlsplit(f"//{host_header}")
            return parts.port in (self.port, None) and parts.hostname is not None and is_loopback(parts.hostname)
        except ValueError:
            return False

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):  # a browser that hangs up is no news
            super().handle_error(request, client_address)


def is_loopback(host: str) -> bool:
    """
    >>> [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "evil.example", "192.168.1.5")]
    [True, True, True, False, False, False]
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Handler(BaseHTTPRequestHandler):
    server: LiveServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "cos2p", ""
    timeout = 30

    def do_GET(self) -> None:
        target = urlsplit(self.path)
        query = parse_qs(target.query, keep_blank_values=True)
        if not self.server.is_ours(self.headers.get("Host", "")):
            self._send(HTTPStatus.FORBIDDEN, b"not by this name\n")
        elif not self._may_look(query):
            self._send(HTTPStatus.FORBIDDEN, b"open the address that `cos2p watch` printed\n")
        elif target.path == "/":
            document = self.server.watch.document()
            page = assemble(document.text, live=True).encode()
            self._send(HTTPStatus.OK, page, "text/html; charset=utf-8")
        elif target.path == "/view.json":
            self._send_document(query)
        else:
            self._send(HTTPStatus.NOT_FOUND, b"there is only / and /view.json\n")

    def _may_look(self, query: dict[str, list[str]]) -> bool:
        token = self.server.token
        if not token:
            return True
        given = query.get("token", [""])[0]
        return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())

    def _send_document(self, query: dict[str, list[str]]) -> None:
        document = self.server.watch.document()
        if query.get("since", [""])[0] == document.version:
            self._send(HTTPStatus.NOT_MODIFIED, b"")
        else:
            self._send(HTTPStatus.OK, document.text.encode(), "application/json", document.packed)

    def _send(
        self, status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8", packed: bytes = b""
    ) -> None:
        """`packed`: the body compressed, where it is at hand."""
        pack = "gzip" in self.headers.get("Accept-Encoding", "") and len(body) > LARGE
        if pack:
            body = packed or gzip.compress(body, compresslevel=1)
        self.send_response(status)
        if status != HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        if pack:
            self.send_header("Content-Encoding", "gzip")
        for name, value in _headers().items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """The terminal belongs to whoever watches; and a request's line would show the token."""


@cache
def _headers() -> dict[str, str]:
    policy = content_policy(page_style(), page_script(), live=True)
    return {
        "Content-Security-Policy": f"{policy}; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-store",
        "Vary": "Accept-Encoding",
    }
