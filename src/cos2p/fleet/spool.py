"""Payloads on disk, so that memory grows neither with the model nor with the number of devices.

`Outgoing` is read chunk by chunk; `Incoming` grows chunk by chunk up to a size agreed beforehand. Both know nothing of
the network: they learn who asks, by name, and hold what is that name's alone.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cos2p.errors import UpdateRefused
from cos2p.fleet.wire import CHUNK_BYTES
from cos2p.older_python import sha256_of


def digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return sha256_of(file)


@dataclass(frozen=True)
class Notice:
    """The announcement of a payload before it travels."""

    task: str
    size: int
    digest: str

    def to_dict(self) -> dict[str, str | int]:
        return {"task": self.task, "size": self.size, "digest": self.digest}

    @classmethod
    def from_dict(cls, values: object) -> Notice:
        """UpdateRefused for whatever is not one: it comes from outside."""
        fields = values if isinstance(values, Mapping) else {}
        task, size, digest = fields.get("task"), fields.get("size"), fields.get("digest")
        if not (isinstance(task, str) and isinstance(digest, str)) or not isinstance(size, int) or size < 0:
            raise UpdateRefused("a payload is announced by its task, size and digest")
        return cls(task, size, digest)


class Outgoing:
    def __init__(self, path: Path, task: str, write: Callable[[Path], object]) -> None:
        write(path)
        self.path = path
        self.notice = Notice(task, path.stat().st_size, digest_of_file(path))
        with path.open("rb") as file:
            self._announced = header_bytes(memoryview(file.read(8)))

    def read(self, offset: int, most: int = CHUNK_BYTES) -> bytes:
        """The chunk that begins at `offset`; UpdateRefused if there is none."""
        if not 0 <= offset < self.notice.size:
            raise UpdateRefused(f"byte {offset} of a payload of {self.notice.size} was asked for")
        with self.path.open("rb") as file:
            file.seek(offset)
            return file.read(min(most, CHUNK_BYTES))

    def tensors_to(self, end: int) -> int:
        """Bytes of tensors up to `end` that were not asked for before: a chunk sent again is counted once."""
        new, self._announced = max(0, end - self._announced), max(end, self._announced)
        return new

    def drop(self) -> None:
        self.path.unlink(missing_ok=True)


class Incoming:
    """One payload arriving. Chunks come in order; one that was received already may come again and is ignored."""

    def __init__(self, path: Path, notice: Notice, limit: int) -> None:
        if notice.size > limit:
            raise UpdateRefused(f"a payload of {notice.size} bytes is announced; at most {limit} are taken")
        self.path, self.notice = path, notice
        self.received = 0
        self._file = path.open("wb", buffering=0)
        self._sum = hashlib.sha256()

    def write(self, offset: int, chunk: bytes | memoryview) -> int:
        """Take a chunk; returns how many bytes are here now, so that a sender knows where to go on."""
        if offset + len(chunk) <= self.received and offset >= 0:
            return self.received
        if offset != self.received:
            raise UpdateRefused(f"byte {offset} came where byte {self.received} was expected")
        if self.received + len(chunk) > self.notice.size:
            raise UpdateRefused(
                f"more than the {self.notice.size} bytes announced: {self.received} + {len(chunk)}; the rest is refused"
            )
        try:
            rest = memoryview(chunk)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:  # of a full disk: the same chunk comes again, and must not follow a part of it
            self._file.truncate(self._file.seek(self.received))
            raise
        self._sum.update(chunk)
        self.received += len(chunk)
        return self.received

    def close(self) -> Path:
        """The complete file; UpdateRefused if bytes are missing or changed on the way."""
        self._file.close()
        if self.received != self.notice.size:
            raise UpdateRefused(f"truncated: {self.received} of {self.notice.size} bytes came")
        if self._sum.hexdigest() != self.notice.digest:
            raise UpdateRefused("its bytes are not those that were announced")
        return self.path

    def drop(self) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)


def clean(folder: Path) -> Path:
    """An empty folder for payloads; what an earlier process left is gone."""
    folder.mkdir(parents=True, exist_ok=True)
    for entry in os.scandir(folder):
        if entry.is_file():
            Path(entry.path).unlink()
    return folder


# Bytes that each client's link carried: tensors, and everything on top of them.


PARTS = ("tensors_down", "tensors_up", "wire_down", "wire_up")
"""Bytes of tensors that travelled, each counted once, and of all frames: heads, questions, heartbeats, repetitions."""


def header_bytes(beginning: memoryview) -> int:
    """Bytes before the tensors in a safetensors payload: 8 with the header's length, and the header."""
    return 8 + int.from_bytes(beginning[:8], "little")


class LinkCounts:
    """Counters per client; called by the network's threads and by the run's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[str]] = {}

    def add(self, client: str, **parts: int) -> None:
        with self._lock:
            self._counts.setdefault(client, Counter()).update(parts)

    def of(self, client: str) -> dict[str, int]:
        with self._lock:
            counts = self._counts.get(client, Counter[str]())
            return {part: counts[part] for part in PARTS}

    def to_dict(self) -> dict[str, dict[str, int]]:
        return {client: self.of(client) for client in sorted(self._counts)}

    def load_dict(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        with self._lock:
            self._counts = {
                client: Counter({part: int(n) for part, n in own.items()}) for client, own in values.items()
            }
