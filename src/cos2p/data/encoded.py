"""Encoded images before anybody looked at them: all of them in a row, or one of them at random."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import numpy as np

from cos2p.data.images import BadImage, Content
from cos2p.data.paths import cache_folder, key_of, write_whole
from cos2p.data.select import IntArray
from cos2p.errors import DataError

Named = tuple[str, Content]
"""What messages call an image, and the image."""


class RandomAccess(Protocol):
    def __getitem__(self, number: int, /) -> Named: ...


class Encoded(Protocol):
    """Some images of a source, numbered from 0."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Named]: ...

    def identity(self) -> str:
        """Other images have another one, and so have the same images after a change."""

    @property
    def ready(self) -> bool:
        """Whether `at_random` costs nothing."""

    def at_random(self) -> RandomAccess: ...


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """A file each."""

    files: Sequence[str]
    stamps: IntArray
    """(N, 2): size and time of the last change."""

    ready = True

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int, /) -> Named:
        return self.files[number], Path(self.files[number])

    def __iter__(self) -> Iterator[Named]:
        return ((file, Path(file)) for file in self.files)

    def identity(self) -> str:
        return key_of("files", "\0".join(self.files), np.ascontiguousarray(self.stamps).tobytes())

    def at_random(self) -> RandomAccess:
        return self


@dataclass(frozen=True, eq=False)
class ImageCells:
    """Cells of a table. A table is read from its beginning, row group by row group: for one image in the middle of it
    the encoded images are first laid side by side in a file that all processes map into memory."""

    where: str
    rows: IntArray
    """Which rows of the table, ascending."""
    read: Callable[[IntArray], Iterator[Content]]
    """The images of these rows, in order, with no more than some rows in memory."""
    source: str
    """The identity of the table."""

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Named]:
        return zip(map(self.name, range(len(self))), self.read(self.rows), strict=True)

    def name(self, number: int) -> str:
        return f"{self.where}, row {self.rows[number]}"

    def identity(self) -> str:
        return key_of("cells", self.source, self.rows.tobytes())

    @property
    def ready(self) -> bool:
        return all(file.exists() for file in self._files())

    def at_random(self) -> RandomAccess:
        images, ends = self._files()
        if not self.ready:
            try:
                self._lay_out(images, ends)
            except (OSError, RuntimeError) as error:
                raise DataError(
                    f"{self.where}: its images are larger than data.cache, and cannot be laid out in {images.parent} "
                    f"({error}); raise data.cache, or set XDG_CACHE_HOME to a folder with more room"
                ) from error
        return _Mapped(self.name, images, np.load(ends))

    def _files(self) -> tuple[Path, Path]:
        stem = cache_folder("images") / self.identity()
        return stem.with_suffix(".images"), stem.with_suffix(".npy")

    def _lay_out(self, images: Path, ends: Path) -> None:
        lengths: list[int] = []

        def write(file: IO[bytes]) -> None:
            for _, content in self:
                lengths.append(file.write(_stored(content)))

        write_whole(images, write)
        write_whole(ends, lambda file: np.save(file, np.cumsum(lengths)))


def _stored(content: Content) -> bytes:
    if isinstance(content, BadImage):
        return b""  # its number will not be asked for
    return content if isinstance(content, bytes) else content.read_bytes()


class _Mapped:
    def __init__(self, name: Callable[[int], str], file: Path, ends: IntArray) -> None:
        self._name, self._ends = name, ends
        self._bytes: mmap.mmap | bytes = b""
        with file.open("rb") as opened, contextlib.suppress(ValueError):  # an empty file cannot be mapped
            self._bytes = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)

    def __getitem__(self, number: int, /) -> Named:
        start = int(self._ends[number - 1]) if number else 0
        return self._name(number), self._bytes[start : int(self._ends[number])]
