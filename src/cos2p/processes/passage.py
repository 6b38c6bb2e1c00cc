"""Messages between two processes whose bytes go through memory that both see. A pipe takes several times as long: it
hands over 64 KiB at a time, and wakes the other side for each.

The memory is a file that has no name and lies on no disk. When both processes have ended, whichever way, it is gone;
nobody has to clean up. Where there is no such thing, or the bytes are too many, they are part of the message.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any, NamedTuple

MOST = 2**25
"""Bytes that go through memory at a time; it is kept for the next message."""

Buffer = bytes | memoryview


class Pieces:
    """Bytes that lie in several places. In the process that they are sent to they are one `bytes`."""

    def __init__(self, pieces: Sequence[Buffer]) -> None:
        self.pieces = pieces

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces)

    def __reduce__(self) -> tuple[Callable[..., bytes], tuple[bytes]]:
        return bytes, (bytes(self),)


class Common(Pieces):
    """Bytes that one message after the other has in it. Who has them of the message before is not sent them again, and
    gets the very same `bytes` once more. They must not change."""


class _Shared(NamedTuple):
    number: int
    data: bytes | Sequence[Buffer]


_NOTHING = _Shared(0, b"")


class Passage:
    """One direction between two processes, each of which has an end of it. What was packed at one end has to be
    unpacked at the other before the next is packed."""

    def __init__(self, file: int | None = None) -> None:
        self._file = _nameless_file() if file is None else file
        self._memory: mmap.mmap | None = None
        self._used = 0
        """Bytes of the message that is being packed."""
        self._sent = self._to_send = _NOTHING
        self._received = self._to_keep = _NOTHING
        """What is common to messages, at either end: of those before, and of those before and this one."""

    def __reduce__(self) -> tuple[Callable[[Any], Passage], tuple[Any]]:
        """To a process that is being started."""
        return _other_end, (None if self._file < 0 else DupFd(self._file),)

    def packed(self, value: Any) -> memoryview:
        self._used, self._to_send = 0, self._sent
        text = io.BytesIO()
        _Pickler(text, self).dump(value)
        self._sent = self._to_send  # only now: what cannot be pickled is not sent
        return text.getbuffer()

    def unpacked(self, message: bytes | memoryview) -> Any:
        value = _Unpickler(io.BytesIO(message), self).load()
        self._received = self._to_keep
        return value

    def close(self) -> None:
        """This end. Afterwards everything is part of the message."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    # ------------------------------------------------------------ what a message says instead of the bytes

    def put(self, value: Pieces) -> tuple[int, int, int] | None:
        """Where they begin and end, and their number if they are common; those of the message before end where they
        begin. None if they have to be part of the message."""
        common = isinstance(value, Common)
        if common and value.pieces is self._sent.data:
            return 0, 0, self._sent.number
        begin = self._used
        end = begin + sum(map(_size, value.pieces))
        if begin == end or not self._reaches(end):
            return None
        assert self._memory is not None
        for piece in value.pieces:
            self._memory[self._used : self._used + _size(piece)] = piece
            self._used += _size(piece)
        if not common:
            return begin, end, 0
        self._to_send = _Shared(self._to_send.number + 1, value.pieces)
        return begin, end, self._to_send.number

    def get(self, begin: int, end: int, number: int) -> bytes:
        if begin == end:
            if number != self._received.number:
                raise ValueError("a message counts on bytes of another one that did not arrive")
            assert isinstance(self._received.data, bytes)
            return self._received.data
        if self._memory is None or len(self._memory) < end:
            self._map(os.fstat(self._file).st_size)
        assert self._memory is not None
        found = self._memory[begin:end]
        if number:
            self._to_keep = _Shared(number, found)
        return found

    def _reaches(self, end: int) -> bool:
        """Whether there is so much memory; it is made if it can be."""
        if self._memory is not None and end <= len(self._memory):
            return True
        if self._file < 0 or end > MOST:
            return False
        size = max(mmap.PAGESIZE, 1 << (end - 1).bit_length())
        try:
            os.posix_fallocate(self._file, 0, size)  # so that no write finds out that there is no room
            self._map(size)
        except OSError:
            return False
        return True

    def _map(self, size: int) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        self._memory = mmap.mmap(self._file, size)


class _Pickler(ForkingPickler):
    def __init__(self, file: io.BytesIO, passage: Passage) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._passage = passage

    def persistent_id(self, value: Any) -> tuple[int, int, int] | None:
        return self._passage.put(value) if isinstance(value, Pieces) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, passage: Passage) -> None:
        super().__init__(file)
        self._passage = passage

    def persistent_load(self, place: tuple[int, int, int]) -> bytes:
        return self._passage.get(*place)


def _size(piece: Buffer) -> int:
    return piece.nbytes if isinstance(piece, memoryview) else len(piece)


def _nameless_file() -> int:
    """Below 0 where there is none."""
    if hasattr(os, "memfd_create") and hasattr(os, "posix_fallocate"):
        with suppress(OSError):
            return os.memfd_create("cos2p", os.MFD_CLOEXEC)
    return -1


def _other_end(file: Any) -> Passage:
    return Passage(-1 if file is None else file.detach())
