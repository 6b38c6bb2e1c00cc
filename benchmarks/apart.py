"""Can a server tell an update with a backdoor from an honest one? What it could look at, round by round.

python -m benchmarks.apart OUT [STRENGTH]

Of every update of `quickstart` with one device that trains a backdoor: its length, its mean cosine with the round's
others, and what it takes off the loss on the server's validation samples next to the others' updates, over all classes
and in the class where it does worst. A line of JSON for each.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from cos2p.aggregation.merge import Contribution, Merge
from cos2p.aggregation.robust.filter import RobustFilter
from cos2p.aggregation.robust.sketch import compare
from cos2p.methods import method_class
from cos2p.models.layout import Weights
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import build_run_setup
from cos2p.runtime.simulation import run


def averaged(items: list[Contribution], merge: Merge, current: Weights, without: int = -1) -> Weights:
    """The next version, each weight by the mean of those who hold it."""
    found = {}
    places = [merge.places(item) for item in items]
    for name, tensor in current.items():
        total, count = torch.zeros_like(tensor), torch.zeros_like(tensor)
        for number, (item, where) in enumerate(zip(items, places, strict=True)):
            if number != without and name in item.delta:
                total[where[name]] += item.delta[name]
                count[where[name]] += 1
        found[name] = tensor + total / count.clamp_min(1)
    return found


def play(out: str, strength: str) -> None:
    changes = [
        "schedule.updates=120",
        "schedule.evaluate_every=50",
        f"attack.kind=backdoor:{strength}",
    ]
    recipe = Recipe.load("quickstart", changes)
    setup, plain = build_run_setup(recipe), RobustFilter.release
    seen = setup.bundle.validation
    inputs, labels = seen.batch(torch.arange(len(seen)), recipe.data.normalize)

    @torch.no_grad()
    def losses(weights: Weights) -> torch.Tensor:
        model = method_class("cos2p").evaluation_model(setup.config, weights, (setup.config.depth,)).eval()
        each = torch.nn.functional.cross_entropy(model(inputs, None)[-1], labels, reduction="none")
        return torch.stack([each[labels == kind].mean() for kind in range(setup.bundle.classes)])

    def release(self: RobustFilter, merge: Merge, current: Weights) -> Any:
        added, doubts = plain(self, merge, current)
        items = [item for item in added if item.delta]
        pairs = compare([(item.client, self.sampler.sketch(item, merge, current)) for item in items], {})
        whole = losses(averaged(items, merge, current))
        for number, item in enumerate(items):
            cosines = [found.cosine for pair, found in pairs.items() if item.client in pair and pair[0] != pair[1]]
            gain = losses(averaged(items, merge, current, without=number)) - whole
            flat = torch.cat([tensor.flatten() for tensor in item.delta.values()])
            row = {
                "client": item.client, "length": float(flat.square().mean().sqrt()),
                "cosine": sum(cosines) / max(1, len(cosines)), "gain": float(gain.mean()), "worst": float(gain.min()),
            }  # fmt: skip
            print(json.dumps(row | {"lies": item.client in setup.malicious}), flush=True)
        return added, doubts

    RobustFilter.release = release  # type: ignore[method-assign]
    run(recipe, Path(out))


if __name__ == "__main__":
    play(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "1")
