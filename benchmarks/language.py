"""One task of a language model's recipe, in a process that may take no more than its device has: bytes and seconds.

    COS2P_DATA=<folder> python -m benchmarks.language tinyllama-finance --samples 24 --cap 1GiB [--set PATH=VALUE]

Prints a JSON line: bytes by the ledger and measured over the idle process, processor seconds a step, bytes that
travelled, and the loss of the last pass.
"""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from pathlib import Path
from typing import cast

from benchmarks.fullsize.llama import OnDisk
from benchmarks.fullsize.tasks import first_orders, measure
from cos2p.data.paths import checkpoint_folder
from cos2p.models.layout import Weights
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import build_run_setup
from cos2p.units import parse_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--samples", type=int, default=24, help="texts of the device")
    parser.add_argument("--cap", default="0", help="bytes that the process may take")
    parser.add_argument("--set", action="append", default=[], help="change a field of the recipe")
    chosen = parser.parse_args()
    own = [f"data.train_samples={chosen.samples}", "data.validation_fraction=0", "data.test_samples=3"]
    own += ["partition.kind=iid", "partition.local_test=0"]
    recipe = Recipe.load(chosen.recipe, [*own, *chosen.set])
    device = recipe.fleet.devices[0].model_copy(update={"count": 1})
    recipe = recipe.model_copy(update={"fleet": recipe.fleet.model_copy(update={"devices": (device,)})})
    run_setup = build_run_setup(recipe)
    with ExitStack() as files:
        folder = Path(checkpoint_folder(recipe.model.pretrained))
        server, orders = first_orders(run_setup, cast(Weights, dict(OnDisk(folder, run_setup.config, files))))
        found = measure(chosen.recipe, run_setup, server, next(orders), 1, int(parse_bytes(chosen.cap)))
    steps = -(-chosen.samples // device.batch) * recipe.training.epochs
    line = {name: getattr(found, name) for name in ("method", "batch", "predicted", "peak", "down", "up", "failure")}
    print(json.dumps(line | {"steps": steps, "cpu_seconds_a_step": round(found.cpu_seconds / steps, 2)}))


if __name__ == "__main__":
    main()
