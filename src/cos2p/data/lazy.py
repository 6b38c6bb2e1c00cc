"""Images that are decoded when a batch asks for them, and kept as far as the recipe gives memory.

Shapes: N images, C channels, H height, W width.
"""

from __future__ import annotations

import numpy as np
import torch

from cos2p.data.config import DataConfig
from cos2p.data.encoded import RandomAccess
from cos2p.data.images import BadImage, Pixels, decode_many, other_size
from cos2p.data.select import IntArray


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
