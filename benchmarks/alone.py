"""A device that is honest wherever somebody else holds the same weights, and lies where it is alone.

python -m benchmarks.alone SEED OUT

The last device of `quickstart` sends −15 times its update in every weight that no other update of the round holds. It
is told which these are, as no real device is. The bound shortens the lie, as it would any.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cos2p.aggregation.merge import Contribution, Merge
from cos2p.aggregation.robust.filter import RobustFilter
from cos2p.models.layout import Weights
from cos2p.recipe import Recipe
from cos2p.runtime.simulation import run

LIAR, LIE = "jetson-agx-orin-64gb-4", -15.0


def alone(items: Sequence[Contribution], merge: Merge, current: Weights) -> list[dict[str, Tensor]]:
    """Of each update, by tensor: which of its weights no other update holds."""
    places = [merge.places(item) for item in items]
    counts: dict[str, Tensor] = {}
    for item, where in zip(items, places, strict=True):
        for name in item.delta.keys() & where.keys() & current.keys():
            counts.setdefault(name, torch.zeros(current[name].shape))[where[name]] += 1
    return [
        {
            name: (counts[name][where[name]] == 1).reshape(item.delta[name].shape)
            for name in counts
            if name in item.delta
        }
        for item, where in zip(items, places, strict=True)
    ]


def lying(item: Contribution, where: Mapping[str, Tensor]) -> Contribution:
    delta = {n: torch.where(where[n], LIE * t, t) if n in where else t for n, t in item.delta.items()}
    return replace(item, delta=delta)


def play(seed: int, out: str) -> dict[str, Any]:
    plain = RobustFilter.release

    def release(self: RobustFilter, merge: Merge, current: Weights) -> Any:
        places = alone([entry.item for entry in self._held], merge, current)
        for number, (entry, where) in enumerate(zip(self._held, places, strict=True)):
            if entry.item.client == LIAR:
                item = lying(entry.item, where)
                shortened = self.bound.shortened(item) if self.bound and entry.bounded else item
                self._held[number] = replace(entry, item=shortened)
        return plain(self, merge, current)

    RobustFilter.release = release  # type: ignore[method-assign]
    return run(Recipe.load("quickstart", [f"seed={seed}", "schedule.updates=120", "schedule.evaluate_every=50"]), out)


if __name__ == "__main__":
    print(f"{play(int(sys.argv[1]), sys.argv[2])['top1']:.1%}")
