"""A look at every image before anything starts, so that a broken one stops a run at its beginning and not in its
fifth hour. What was found is remembered: the next start with the same images decodes none of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import PIL
import torch

from cos2p.data.cachedir import key_of, recall, remember
from cos2p.data.config import DataConfig
from cos2p.data.encoded import Encoded
from cos2p.data.images import BadImage, Pixels, decode_many, other_size
from cos2p.data.lazy import ImageStore, LazyImages
from cos2p.data.select import IntArray
from cos2p.errors import DataError

_LISTED = 10
"""Images that cannot be read are named up to here, then counted."""


@dataclass(frozen=True)
class Survey:
    """What a look at every image found."""

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
    decoding = json.dumps([PIL.__version__, config.channels, config.image_size, config.crop])
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
