"""A device's own data: the part it trains on and the part it tests its submodel on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from cos2p.data.examples import Examples, Normalize


@dataclass(frozen=True, eq=False)
class Shard:
    train: Examples
    test: Examples
    normalize: Normalize

    def inputs(self, part: Examples, rows: slice | Tensor) -> Tensor:
        index = torch.arange(len(part))[rows] if isinstance(rows, slice) else rows
        return part.batch(index, self.normalize)[0]


def shuffled(samples: int, batch: int, epochs: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Row numbers of every batch of `epochs` passes, each pass in an order of its own."""
    for _ in range(epochs):
        yield from torch.randperm(samples, generator=rng).split(batch)


def steps(samples: int, batch: int, epochs: int) -> int:
    return epochs * -(-samples // batch)
