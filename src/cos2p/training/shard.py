"""A device's own data: the part it trains on and the part it tests its submodel on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from cos2p.data.examples import Examples, Normalize
from cos2p.data.ragged import length_batches


@dataclass(frozen=True, eq=False)
class Shard:
    train: Examples
    test: Examples
    normalize: Normalize

    def inputs(self, part: Examples, rows: slice | Tensor) -> Tensor:
        index = torch.arange(len(part))[rows] if isinstance(rows, slice) else rows
        return part.batch(index, self.normalize)[0]


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
