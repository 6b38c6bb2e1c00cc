"""A sample of an update's scalars, at the same places of the model for all: enough to see how updates point to each
other.

A cosine over so many scalars is off by 0.003, a fraction of what honest updates have in common. So what is remembered
of a device does not grow with the model. The places are drawn by a number that devices do not know on a real fleet;
otherwise a dishonest one could be honest there and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cos2p.aggregation.merge import Contribution, Merge
from cos2p.aggregation.robust.standing import Evidence
from cos2p.models.layout import Weights
from cos2p.seeding import torch_rng

SCALARS = 2**17
"""A model with no more scalars is compared on all of them."""


class Sampler:
    def __init__(self, salt: int) -> None:
        self.salt = salt
        self._places: dict[str, Tensor | slice] = {}

    def sketch(self, item: Contribution, merge: Merge, current: Weights) -> Tensor:
        """The update's scalars at the sampled places; infinite where it does not hold one."""
        where, total = merge.places(item), sum(tensor.numel() for tensor in current.values())
        parts = []
        for name, tensor in current.items():
            place = self._place(name, tensor.numel(), total)
            full = torch.full(tensor.shape, torch.inf)
            if name in item.delta and name in where:
                full[where[name]] = item.delta[name]
            parts.append(full.view(-1)[place])
        return torch.cat(parts)

    def _place(self, name: str, scalars: int, total: int) -> Tensor | slice:
        if name not in self._places:
            wanted = -(-scalars * SCALARS // total) if total > SCALARS else scalars
            drawn = torch.randint(max(1, scalars), (wanted,), generator=torch_rng(self.salt, "sketch", name))
            self._places[name] = drawn.unique() if wanted < scalars else slice(None)
        return self._places[name]


def compare(new: Sequence[tuple[str, Tensor]], earlier: Mapping[str, Tensor]) -> dict[tuple[str, str], Evidence]:
    """How a round's updates point to each other, and to what was sent before: by pairs of devices, a device with itself
    among them.

    With the earlier ones a segment that had one holder in its round is compared when its next holder comes.
    """
    if not new:
        return {}
    everyone = [*new, *earlier.items()]
    stack = torch.stack([sketch for _, sketch in everyone])
    held = stack.isfinite()
    values, held = torch.where(held, stack, 0.0), held.float()
    squares, rows = values.square(), len(new)
    found = torch.stack(
        (values[:rows] @ values.T, squares[:rows] @ held.T, held[:rows] @ squares.T, held[:rows] @ held.T)
    ).double()
    pairs: dict[tuple[str, str], Evidence] = {}
    for i, (mine, _) in enumerate(new):
        for j, (theirs, _) in enumerate(everyone):
            shared = float(found[1, i, j]) > 0 and float(found[2, i, j]) > 0
            if shared and (j >= rows or (j > i and mine != theirs)):
                evidence, pair = Evidence(*found[:, i, j].tolist()), (mine, theirs)
                if pair[::-1] in pairs:
                    evidence, pair = evidence.turned(), pair[::-1]
                pairs[pair] = pairs[pair] + evidence if pair in pairs else evidence
    return pairs
