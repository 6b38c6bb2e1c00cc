"""Heads and units by number, and what is done with them.

In one list over all blocks they are numbered block after block: number = block · (segments of a block) + segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from cos2p import ModelConfig, SubmodelSpec
from cos2p.methods import Weights

Kind = Literal["heads", "units"]


def per_block(config: ModelConfig, key: str) -> int:
    """How many `heads` or `units` (also `heads.3`) a full block has."""
    return config.groups if key.startswith("heads") else config.mlp


def held(spec: SubmodelSpec, key: str) -> Tensor:
    """`heads.3`, `units.3`: those of block 3 that a submodel holds, numbered in their block."""
    kind, _, block = key.partition(".")
    keep = spec.keep(int(block))
    return torch.tensor(keep.heads if kind == "heads" else keep.units, dtype=torch.int64)


def scale_outputs(weights: Weights, factors: Mapping[str, Tensor], config: ModelConfig) -> Weights:
    """The (compact or full) weights with the outputs of heads and units times a factor each (`heads.3`, `units.3`)."""
    scaled = dict(weights)
    for key, factor in factors.items():
        kind, _, block = key.partition(".")
        name = f"blocks.{block}.{'o' if kind == 'heads' else 'fc2'}.weight"
        width = config.queries_per_group * config.head_dim if kind == "heads" else 1
        scaled[name] = weights[name] * factor.repeat_interleave(width)
    return scaled


def even_order(blocks: int, segments: int, rng: torch.Generator | None = None) -> list[int]:
    """All segments of all blocks in an order whose every beginning is spread evenly over the blocks.

    Without a generator the leading segments come first; with one each block has an order of its own.

    >>> even_order(2, 3)
    [0, 3, 1, 4, 2, 5]
    """
    orders = [
        list(range(segments)) if rng is None else torch.randperm(segments, generator=rng).tolist()
        for _ in range(blocks)
    ]
    return [block * segments + orders[block][place] for place in range(segments) for block in range(blocks)]


def best_first(scores: Tensor, order: Sequence[int]) -> list[int]:
    """All segments by falling score; equals as they stand in `order`, which lists every segment once.

    >>> best_first(torch.tensor([1.0, 3.0, 3.0]), [2, 0, 1])
    [2, 1, 0]
    """
    ordered = torch.tensor(order, dtype=torch.int64)
    best: list[int] = ordered[torch.sort(scores[ordered], descending=True, stable=True).indices].tolist()
    return best


def by_block(chosen: Iterable[int], blocks: int, segments: int) -> list[list[int]]:
    """Segments numbered through all blocks, block by block.

    >>> by_block([4, 0, 5], blocks=2, segments=3)
    [[0], [1, 2]]
    """
    found: list[list[int]] = [[] for _ in range(blocks)]
    for number in sorted(chosen):
        found[number // segments].append(number % segments)
    return found
