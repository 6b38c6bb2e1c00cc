"""Images that are decoded when a batch asks for them, and kept as far as the recipe gives memory.

A run looks at every image first, so that a broken one stops it at its beginning and not in its fifth hour. The result
is cached: the next start with the same images decodes none of them.

Shapes: N images, C channels, H height, W width.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import numpy as np
import torch

from cos2p.data.config import DataConfig
from cos2p.data.images import BadImage, Content, Pixels, decode_many, other_size, pillow
from cos2p.data.paths import cache_folder, key_of, recall, remember, write_whole
from cos2p.data.select import IntArray
from cos2p.errors import DataError

Named = tuple[str, Content]
"""An image's name for messages, and the image."""


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


class ImageStore:
    """Decodes on demand. Keeps those that are asked for first: in a pass over all samples, again and again, throwing
    out one to keep another would gain nothing."""

    def __init__(self, images: RandomAccess, good: IntArray, config: DataConfig, kept: Pixels, filled: int) -> None:
        """`good`: which of the images can be read. `kept`: room, of which the first `filled` hold the first images."""
        self._images, self._good, self._config = images, good, config
        self._kept, self._filled = kept, filled
        self._place = np.full(len(good), -1, dtype=np.int64)
        self._place[:filled] = np.arange(filled)

    def __len__(self) -> int:
        return len(self._good)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._kept.shape[1:]

    @property
    def nbytes(self) -> int:
        """Memory of the decoded images that are held now."""
        return self._filled * int(np.prod(self.shape))

    def read(self, rows: IntArray) -> Pixels:
        """(n, C, H, W)."""
        found = np.empty((len(rows), *self.shape), dtype=np.uint8)
        places = self._place[rows]
        held = places >= 0
        found[held] = self._kept[places[held]]
        missing = np.flatnonzero(~held)
        images = (self._images[int(self._good[row])] for row in rows[missing])
        for at, (name, pixels) in zip(missing, decode_many(images, self._config), strict=True):
            if isinstance(pixels, BadImage):
                raise pixels
            if pixels.shape != self.shape:
                raise other_size(name, pixels.shape, "the others", self.shape)
            found[at] = pixels
            self._keep(int(rows[at]), pixels)
        return found

    def _keep(self, row: int, pixels: Pixels) -> None:
        if self._place[row] < 0 and self._filled < len(self._kept):
            self._kept[self._filled] = pixels
            self._place[row] = self._filled
            self._filled += 1


class LazyImages:
    """Some images of a store. Reads like a tensor (N, C, H, W) of bytes: `images[rows]`."""

    dtype = torch.uint8
    ndim = 4

    def __init__(self, store: ImageStore, rows: IntArray) -> None:
        self._store, self._rows = store, rows

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self), *self._store.shape))

    @property
    def nbytes(self) -> int:
        return self._store.nbytes

    def __getitem__(self, rows: torch.Tensor | slice) -> torch.Tensor:
        chosen = rows.numpy() if isinstance(rows, torch.Tensor) else rows
        return torch.from_numpy(self._store.read(self._rows[chosen]))

    def subset(self, rows: torch.Tensor) -> LazyImages:
        """These of the images, still not decoded; what is kept is shared."""
        return LazyImages(self._store, self._rows[rows.numpy()])


# ---------------------------------------------------------------- a first look at all of them

_LISTED = 10
"""Images that cannot be read are named up to here, then counted."""


@dataclass(frozen=True)
class Survey:
    """The findings of a look at every image."""

    shape: tuple[int, int, int]
    bad: dict[int, tuple[str, str]]
    """Number of an image that cannot be read to its name and the reason."""

    def to_bytes(self) -> bytes:
        return json.dumps({"shape": self.shape, "bad": [[k, *v] for k, v in self.bad.items()]}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Survey:
        values = json.loads(data)
        channels, height, width = values["shape"]
        return cls((channels, height, width), {number: (name, why) for number, name, why in values["bad"]})


@dataclass(frozen=True, eq=False)
class Opened:
    images: torch.Tensor | LazyImages
    """Those that can be read."""
    good: IntArray
    """Their numbers."""
    bad: list[tuple[str, str]]
    """Names of the others, each with the reason."""


def open_images(encoded: Encoded, config: DataConfig, room: int) -> Opened:
    """The images, at most `room` bytes of them decoded in memory; as a tensor if a look at all of them was due and
    all of them fit."""
    decoding = json.dumps([pillow().__version__, config.channels, config.image_size, config.crop])
    name = key_of(encoded.identity(), decoding) + ".json"
    known = recall("images", name) if encoded.ready else None
    if known is not None:
        survey = Survey.from_bytes(known)
        kept = _room(len(encoded) - len(survey.bad), room, survey.shape)
        filled = 0
    else:
        survey, kept = _look_at_all(encoded, config, room)
        filled = len(kept)
        remember("images", name, survey.to_bytes())
    good = np.setdiff1d(np.arange(len(encoded), dtype=np.int64), list(survey.bad), assume_unique=True).astype(np.int64)
    bad = list(survey.bad.values())
    if filled == len(good):
        return Opened(torch.from_numpy(kept), good, bad)
    store = ImageStore(encoded.at_random(), good, config, kept, filled)
    return Opened(LazyImages(store, np.arange(len(good), dtype=np.int64)), good, bad)


def _room(count: int, room: int, shape: tuple[int, ...]) -> Pixels:
    return np.empty((min(count, room // max(1, math.prod(shape))), *shape), dtype=np.uint8)


def _look_at_all(encoded: Encoded, config: DataConfig, room: int) -> tuple[Survey, Pixels]:
    """Decode every image; also the first good ones, as many as there is room for."""
    kept: Pixels | None = None
    bad: dict[int, tuple[str, str]] = {}
    first = ""
    for number, (name, pixels) in enumerate(decode_many(encoded, config)):
        if isinstance(pixels, BadImage):
            bad[number] = (pixels.name, pixels.reason)
            continue
        if kept is None:
            kept, first = _room(len(encoded), room, pixels.shape), name
        if pixels.shape != kept.shape[1:]:
            raise other_size(name, pixels.shape, first, kept.shape[1:])
        if number - len(bad) < len(kept):
            kept[number - len(bad)] = pixels
    if kept is None:
        kept = np.empty((0, config.channels, config.image_size, config.image_size), dtype=np.uint8)
    channels, height, width = kept.shape[1:]
    return Survey((channels, height, width), bad), kept[: len(encoded) - len(bad)]


def unreadable(bad: Sequence[tuple[str, str]], count: int) -> DataError:
    """All that is wrong at once, so that one does not have to start a run for each."""
    return DataError(
        f"{_some(len(bad), count)} cannot be read; replace them, or leave them out with data.skip_bad = true:"
        + "".join(f"\n  {name} ({reason})" for name, reason in bad[:_LISTED])
        + (f"\n  and {len(bad) - _LISTED} more" if len(bad) > _LISTED else "")
    )


def left_out(bad: Sequence[tuple[str, str]], count: int) -> str:
    """The note for a run that goes on without them."""
    names = ", ".join(name for name, _ in bad[:_LISTED])
    more = f" and {len(bad) - _LISTED} more" if len(bad) > _LISTED else ""
    return f"{_some(len(bad), count)} cannot be read and are left out: {names}{more}"


def _some(bad: int, count: int) -> str:
    return f"{bad:,} of {count:,} images"
