"""A device's own data: the part it trains on and the part it tests its submodel on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from cos2p.data.augment import Augmenter, Change
from cos2p.data.examples import Examples, Normalize
from cos2p.data.ragged import length_batches, widest

READY_BYTES = 2**16
"""Images that take no more as numbers are kept as numbers: a thousand devices' in one process take 64 MB."""


@dataclass(frozen=True, eq=False)
class Shard:
    train: Examples
    test: Examples
    normalize: Normalize
    augment: tuple[Change, ...] = ()

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """These training samples, ready for the model, and their labels."""
        if self.train.augments or self._ready is None:
            return self.train.batch(rows, self.normalize)
        return self._ready.index_select(0, rows), self.train.labels.index_select(0, rows)

    @cached_property
    def _ready(self) -> Tensor | None:
        """All images of a small training part, normalised once for all batches; None if there are more."""
        inputs = self.train.inputs
        if not isinstance(inputs, Tensor) or self.train.is_text or 4 * inputs.numel() > READY_BYTES:
            return None
        return self.inputs(self.train, slice(None))

    @property
    def widths(self) -> Tensor | None:
        """Texts at their real lengths: those of both parts; None where every sample is as wide as all others."""
        if self.train.widths is None or self.test.widths is None:
            return None
        return torch.cat((self.train.widths, self.test.widths))

    @property
    def text_tokens(self) -> tuple[int, int]:
        """Tokens of the longest text, tested ones too, and of all training texts; 0 for images."""
        widths, own = self.widths, self.train.widths
        return (0, 0) if widths is None or own is None else (widest(widths), int(own.sum()))

    def inputs(self, part: Examples, rows: slice | Tensor) -> Tensor:
        """As they are, not augmented."""
        index = torch.arange(len(part))[rows] if isinstance(rows, slice) else rows
        return replace(part, augmenter=None).batch(index, self.normalize)[0]

    def for_task(self, seed: int, client: str, attempt: int) -> Shard:
        """With training images that change from batch to batch, if the recipe says so: the same for the same task."""
        if not self.augment:
            return self
        return replace(self, train=replace(self.train, augmenter=Augmenter(self.augment, seed, client, attempt)))


def shuffled(
    samples: int, batch: int, epochs: int, rng: torch.Generator, widths: Tensor | None = None
) -> Iterator[Tensor]:
    """Row numbers of every batch of `epochs` passes, each pass in an order of its own.

    With `widths` (texts, see `Examples.widths`) samples of like width come together, so that little is padded.
    """
    for _ in range(epochs):
        if widths is None:
            yield from torch.randperm(samples, generator=rng).split(batch)
        else:
            yield from length_batches(widths, batch, rng)


def steps(samples: int, batch: int, epochs: int) -> int:
    return epochs * -(-samples // batch)
