"""The paper's three vision runs at their size: the first task of each kind of device, on synthetic images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fullsize.tasks import Record, announce, first_orders, measure, tier_of
from cos2p.models.sizes import model_config
from cos2p.recipe import Recipe, apply_change, recipe_values, switch_method
from cos2p.runtime.run_setup import build_run_setup, first_weights

METHODS = ("cos2p", "fedrolex")


def synthetic(name: str, method: str, folder: Path, batch: int, epochs: int = 2, changes: Iterable[str] = ()) -> Recipe:
    """The shipped recipe with noise for images: as many a device as its batch, at most `batch` (0: the recipe's own).

    Two epochs of each phase instead of five, so two steps: the first has no optimiser states next to its activations.
    `changes` (`path.to.field=value`) come last.
    """
    values = recipe_values(name)
    groups: list[dict[str, Any]] = [dict(group) for group in values["fleet"]["devices"]]
    for group in groups:
        group["batch"] = min(int(group["batch"]), batch or 2**30)
    values["fleet"]["devices"] = groups
    values["fleet"]["enforce_memory"] = False
    classes = model_config(values["model"]["size"]).classes
    total = sum(int(group["batch"]) * int(group.get("count", 1)) for group in groups)
    _write(folder, total, classes)
    old = values["data"]
    values["data"] = {
        "source": "npz", "path": str(folder), "train": "train.npz", "test": "test.npz", "classes": "classes.txt",
        "validation_fraction": 0.0, "channels": 3, "mean": old["mean"], "std": old["std"],
    }  # fmt: skip
    values["partition"] = {"kind": "iid", "local_test": 0.0}
    values["training"]["epochs"] = values["method"]["masks"]["epochs"] = epochs
    switch_method(values, method)
    for change in changes:
        apply_change(values, change)
    return Recipe.parse(values, name)


def _write(folder: Path, samples: int, classes: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name, count in (("train", samples), ("test", 2)):
        images = rng.integers(0, 256, (count, 224, 224, 3), dtype=np.uint8)
        np.savez(folder / f"{name}.npz", image=images, label=np.arange(count) % classes)
    (folder / "classes.txt").write_text("\n".join(f"class {i}" for i in range(classes)) + "\n", encoding="utf-8")


def run(record: Record, recipes: list[str], methods: list[str], folder: Path, batch: int) -> None:
    for name in recipes:
        for method in methods:
            recipe = synthetic(name, method, folder, batch)
            run_setup = build_run_setup(recipe)
            server, orders = first_orders(run_setup, first_weights(recipe, run_setup.config))
            kinds, seen = Counter(map(tier_of, run_setup.context.members)), set()
            for order in orders:
                kind, member = tier_of(order.client), run_setup.context.members[order.client]
                if kind in seen or record.has(name, method, kind, member.batch, member.rate):
                    continue
                seen.add(kind)
                announce(f"{name} {method} {kind}: R = {member.rate:g}, batch {member.batch}")
                record.add(measure(name, run_setup, server, order, kinds[kind]))
