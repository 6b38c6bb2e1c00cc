"""Frames: a small JSON head and a piece of a payload. Nothing on the wire grows with the model, and nothing is pickled.

A payload (a task, an update: safetensors bytes) is cut into chunks of `CHUNK_BYTES`. Each travels in a frame of its
own, says where it belongs, and can be sent again.

    4 bytes: length of the head │ head: JSON, UTF-8 │ body: raw bytes
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cos2p import strict_json
from cos2p.errors import UpdateRefused

CHUNK_BYTES = 2**20
"""Bytes of a payload in one frame."""

HEAD_BYTES = 2**18
"""Largest head; the largest ones hold a recipe or some pages of the event log."""

HEAD_VALUES = 2**15
"""Most values in a head; a recipe or a page of the log has some hundreds."""

HEAD_DIGITS = 1000

MESSAGE_BYTES = 4 * 2**20
"""Largest message NVFlare lets in: a frame, and NVFlare's own small ones (a job is a few kilobytes)."""

CHUNK_SECONDS = 5.0
"""How long a chunk should travel, or four round trips where they take longer: far less than silence takes to be
noticed, and much more than the wait for its answer."""

RESEND_SECONDS = 30.0
"""After which a message that was not confirmed is taken for lost: a chunk must arrive in half of it."""

ASK_SECONDS = 1.5 * RESEND_SECONDS
"""After which a client asks anew: its question, or the answer, may have gone down with a connection."""

LEAST_CHUNK = 2**14

Head = dict[str, Any]


class ChunkSize:
    """Bytes of the next chunk in one direction: as many as the link carried lately in `CHUNK_SECONDS`.

    The first is small, since nothing is known of the link. A chunk that did not come through halves the next one.

    >>> size = ChunkSize()
    >>> size.moved(32_768, 5.0, round_trip=1.0)
    >>> size.bytes, round(size.rate)
    (40960, 8192)
    """

    def __init__(self) -> None:
        self.bytes = 2**15
        self.rate = 0.0
        """Bytes a second while they move; 0: not measured yet."""
        self.most_seconds = RESEND_SECONDS / 2
        """Longest time of a chunk: while it travels nothing else is heard."""

    def moved(self, size: int, seconds: float, round_trip: float = 0.0) -> None:
        found = size / max(seconds - round_trip, seconds / 2, 1e-6)
        self.rate = found if self.rate == 0.0 else (self.rate + found) / 2
        wanted = min(max(CHUNK_SECONDS, 4 * round_trip), self.most_seconds)
        self.bytes = _between(min(wanted * self.rate, 4 * self.bytes))

    def failed(self) -> None:
        self.bytes = _between(self.bytes / 2)


def _between(size: float) -> int:
    return int(min(CHUNK_BYTES, max(LEAST_CHUNK, size)))


class BadFrame(UpdateRefused):
    """Bytes that are not a frame."""


def pack(head: Mapping[str, Any], body: bytes | memoryview = b"") -> bytes:
    """One frame. A head or body beyond the limits is a defect of the sender, so a ValueError."""
    text = json.dumps(head, separators=(",", ":")).encode()
    if len(text) > HEAD_BYTES or len(body) > CHUNK_BYTES:
        raise ValueError(f"a frame of {len(text)} + {len(body)} bytes; at most {HEAD_BYTES} + {CHUNK_BYTES} fit")
    return b"".join((len(text).to_bytes(4, "big"), text, body))


def unpack(frame: bytes | bytearray | memoryview) -> tuple[Head, memoryview]:
    """Head and body; BadFrame for anything else. The body is a view: nothing is copied."""
    view = memoryview(frame)
    if len(view) < 4:
        raise BadFrame(f"a frame of {len(view)} bytes has no head")
    length = int.from_bytes(view[:4], "big")
    if length > HEAD_BYTES or 4 + length > len(view):
        raise BadFrame(f"a frame of {len(view)} bytes with a head of {length}: truncated, or no frame")
    body = view[4 + length :]
    if len(body) > CHUNK_BYTES:
        raise BadFrame(f"a body of {len(body)} bytes; a chunk has at most {CHUNK_BYTES}")
    try:
        head = strict_json.loads(view[4 : 4 + length], HEAD_VALUES, digits=HEAD_DIGITS)
    except ValueError as error:
        raise BadFrame(f"the head is not JSON: {error}") from None
    if not isinstance(head, dict):
        raise BadFrame("the head is not an object")
    return head, body
