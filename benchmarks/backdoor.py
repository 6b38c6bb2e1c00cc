"""How often a trained model falls for the mark of `attack.kind = "backdoor"`.

python -m benchmarks.backdoor runs/attack/quickstart-backdoor ...

Of the test images that are not of the target's class: the share that the best exit takes for it, as they are and with
the mark. Works for any run of image data that is in memory, attacked or not.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from cos2p.devices.attacks import TARGET, marked
from cos2p.methods import method_class
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import build_run_setup
from cos2p.training.evaluation import evaluate_exits


def shares(folder: Path) -> tuple[float, float]:
    """Without and with the mark."""
    setup = build_run_setup(Recipe.load(folder / "recipe.toml"))
    depth = int(json.loads((folder / "result.json").read_text())["best_exit"])
    exits = tuple(range(1, setup.config.depth + 1))
    weights = load_file(folder / "weights.safetensors")
    model = method_class(setup.recipe.method["name"]).evaluation_model(setup.config, weights, exits)
    test = setup.bundle.test
    others = test.subset((test.labels != TARGET).nonzero().view(-1))
    assert isinstance(others.inputs, torch.Tensor)
    wanted = replace(others, labels=torch.full_like(others.labels, TARGET))
    found = []
    for images in (others.inputs, marked(others.inputs)):
        result = evaluate_exits(model, replace(wanted, inputs=images), setup.recipe.data.normalize)[depth]
        found.append(float(result["top1"]))
    return found[0], found[1]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        plain, bright = shares(Path(name))
        print(f"{name}: {plain:.1%} without the mark, {bright:.1%} with it")
