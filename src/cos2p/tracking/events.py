"""The log of a run: `events.jsonl`, one JSON object per line, only ever appended to.

A checkpoint remembers how long the file was (`offset`). A resumed run cuts it back to there, so that events between the
checkpoint and the crash are in it once. A crash may leave a line without its newline; readers skip it.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cos2p.checksums import crc
from cos2p.errors import RunError
from cos2p.tracking.event_kinds import Event, event_of
from cos2p.tracking.files import explained

Listener = Callable[[Event], None]
"""Gets every event as it is logged, and those that are for listeners alone."""


class EventLog:
    """Writes events, after the first `offset` bytes of the file: a checkpoint's, or 0 for a run that begins."""

    def __init__(self, path: str | Path, offset: int = 0) -> None:
        self.path, self._size = Path(path), 0
        with explained(path):
            # Unbuffered: a line is with the operating system, and survives kill -9, when `write` returns.
            self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            mark_in_use(self._descriptor)
            try:
                self._cut(offset)
            except BaseException:
                self.close()
                raise

    def write(self, event: Event) -> None:
        line = _with_checksum(event_line(event).encode("ascii"))
        with explained(self.path):
            try:
                rest = memoryview(line)
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            except BaseException:
                os.ftruncate(self._descriptor, self._size)  # half a line must not be followed by a whole one
                raise
        self._size += len(line)

    def offset(self) -> int:
        """The length of the file in bytes, all of them safely on disk: what a checkpoint should remember."""
        with explained(self.path):
            os.fsync(self._descriptor)
        return self._size

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _cut(self, offset: int) -> None:
        size = os.fstat(self._descriptor).st_size
        if not 0 <= offset <= size:
            raise RunError(
                f"{self.path} has {size} bytes but its checkpoint counts {offset}; "
                "the two are not of one run, start again with --overwrite"
            )
        if offset and os.pread(self._descriptor, 1, offset - 1) != b"\n":
            raise RunError(
                f"{self.path}: byte {offset} is not the end of an event, so its checkpoint is not of this run; "
                "start again with --overwrite"
            )
        os.ftruncate(self._descriptor, offset)
        self._size = offset


def mark_in_use(descriptor: int) -> None:
    """Show whoever looks at the log that its run is at work. The lock keeps nobody out, and dies with the process."""
    with suppress(OSError):  # not every file system has locks
        fcntl.flock(descriptor, fcntl.LOCK_SH)


_PLAIN_JSON = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def event_line(event: Event) -> str:
    """An event as the file has it. Numbers that are not finite become null; numpy and torch scalars are numbers.

    Fields are sorted, what they hold is not: devices stay in the order of the recipe.

    >>> from cos2p.tracking.event_kinds import Joined
    >>> event_line(Joined(t=float("nan"), client="pi-1"))
    '{"client":"pi-1","kind":"joined","t":null}'
    """
    values = event.to_dict()
    try:
        return _PLAIN_JSON.encode({name: values[name] for name in sorted(values)})
    except (TypeError, ValueError):  # not all of it is what JSON has
        plain = {name: _plain(values[name], name) for name in sorted(values)}
        return _PLAIN_JSON.encode(plain)


_MARK, _MARKED = b',"crc":"', len(b',"crc":"00000000"}')


def _with_checksum(line: bytes) -> bytes:
    """A line of the log: the event, and last the checksum of what stands before it."""
    return b'%s,"crc":"%s"}\n' % (line[:-1], crc(line[:-1]).encode())


def parse_event(line: bytes) -> Event | None:
    """The event of a line; None for a kind that another version wrote and this one does not know.

    ValueError says how the line is damaged.
    """
    line = line.removesuffix(b"\n")
    content, mark, stored = line[:-_MARKED], line[-_MARKED:-10], line[-10:]
    if sum(a == b for a, b in zip(mark, _MARK, strict=False)) > 5:  # a log of an older version has none
        if mark != _MARK or stored != b'%s"}' % crc(content).encode():
            raise ValueError("has another checksum than it was written with")
        line = content + b"}"
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON ({error})") from None
    if not isinstance(values, dict) or not isinstance(values.get("kind"), str):
        raise ValueError("is not an event")
    try:
        return event_of(values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"is not as cos2p writes it ({error})") from None


def read_events(path: str | Path) -> Iterator[Event]:
    """The events of a file in order; a torn last line is skipped, any other damage is a RunError."""
    with explained(path), Path(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                if not is_torn(line):
                    raise RunError(f"{path}, line {number} is not a torn one; the file was damaged")
                return
            try:
                event = parse_event(line)
            except ValueError as damage:
                raise RunError(f"{path}, line {number} {damage}; the file was damaged") from None
            if event is not None:
                yield event


def is_torn(rest: bytes) -> bool:
    """Whether the end of a log is a line that a crash cut short, and not a whole one whose end is damaged."""
    whole = rest[-1 - _MARKED : -1]
    return b"\0" not in rest and not (whole.startswith(_MARK) and whole.endswith(b'"}'))


def _plain(value: Any, name: str) -> Any:
    """`value` as JSON has it. `name` is the field, for the error."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, name) for item in value]
    if isinstance(value, set | frozenset):
        return [_plain(item, name) for item in sorted(value)]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # numpy and torch, scalars and small arrays
        return _plain(value.tolist(), name)
    raise TypeError(f"event field {name!r} is a {type(value).__name__}; use numbers, strings, lists or dicts")
