"""A look at every image before anything starts, so that a broken one stops a run at its beginning and not in its
fifth hour. What was found is remembered: the next start with the same images decodes none of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cos2p.data.cachedir import key_of, recall, remember
from cos2p.data.config import DataConfig
from cos2p.data.encoded import Encoded
from cos2p.data.images import BadImage, Pixels, decode_many, other_size
from cos2p.data.lazy import ImageStore, LazyImages
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


def open_images(encoded: Encoded, config: DataConfig, room: int) -> torch.Tensor | LazyImages:
    """The images, at most `room` bytes of them decoded in memory; as a tensor if a look at all of them was due and
    all of them fit. Raises a DataError that names those that cannot be read."""
    if len(encoded) == 0:
        edge = config.image_size
        return torch.empty((0, config.channels, edge, edge), dtype=torch.uint8)
    decoding = json.dumps([config.channels, config.image_size, config.crop])
    name = key_of(encoded.identity(), decoding) + ".json"
    known = recall("images", name) if encoded.ready else None
    if known is not None:
        survey, kept, filled = Survey.from_bytes(known), None, 0
    else:
        survey, kept = _look_at_all(encoded, config, room)
        filled = len(kept)
        remember("images", name, survey.to_bytes())
    if survey.bad:
        raise unreadable(list(survey.bad.values()), len(encoded))
    good = np.arange(len(encoded), dtype=np.int64)
    if kept is None:
        kept = np.empty((min(len(good), room // int(np.prod(survey.shape))), *survey.shape), dtype=np.uint8)
    if filled == len(good):
        return torch.from_numpy(kept)
    store = ImageStore(encoded.at_random(), good, config, kept, filled)
    return LazyImages(store, np.arange(len(good), dtype=np.int64))


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
            kept = np.empty((min(len(encoded), room // pixels.nbytes), *pixels.shape), dtype=np.uint8)
            first = name
        if pixels.shape != kept.shape[1:]:
            raise other_size(name, pixels.shape, first, kept.shape[1:])
        if number - len(bad) < len(kept):
            kept[number - len(bad)] = pixels
    if kept is None:
        raise unreadable(list(bad.values()), len(encoded))
    channels, height, width = kept.shape[1:]
    return Survey((channels, height, width), bad), kept[: len(encoded) - len(bad)]


def unreadable(bad: Sequence[tuple[str, str]], count: int) -> DataError:
    """All that is wrong at once, so that one does not have to start a run for each."""
    if len(bad) == 1:
        return BadImage(*bad[0])
    listed = "\n".join(f"  {name} ({reason})" for name, reason in bad[:_LISTED])
    more = f"\n  and {len(bad) - _LISTED} more" if len(bad) > _LISTED else ""
    return DataError(
        f"{len(bad)} of {count} images cannot be read; replace them or take them out of the data:\n{listed}{more}"
    )
