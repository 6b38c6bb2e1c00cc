"""The work: FedAvg of vit-nano on handwritten digits, two steps of SGD on each device's dozen of images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peers.work import BATCH, RATE
from cos2p.aggregation.settings import ScheduleSettings
from cos2p.models.spec import SubmodelSpec
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import build_run_setup, first_weights
from cos2p.submodel.slicing import extract

NO_PARTICIPATION = "schedule.clients_per_round does not exist: every device takes part in every round"


def digits_over_and_over(folder: Path, copies: int) -> dict[str, Any]:
    """The digits so many times, in a file in the folder: the data of a recipe."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    file = folder / f"digits-{copies}.npz"
    np.savez(file, image=np.tile(pixels, (copies, 1, 1)), label=np.tile(digits.target, copies))
    return {"source": "npz", "path": str(folder), "train": file.name}


@dataclass(frozen=True)
class Workload:
    devices: int
    per_round: int
    """How many of them take part in a round."""

    def __str__(self) -> str:
        return f"{self.devices:,} devices, {self.per_round} a round"

    def why_not(self) -> str | None:
        """Why cos2p cannot do it; None if it can."""
        if self.per_round == self.devices or "clients_per_round" in ScheduleSettings.model_fields:
            return None
        return NO_PARTICIPATION

    def recipe(self, rounds: int, workers: int, folder: Path) -> Recipe:
        """What the plain loop does and nothing else: no device tests its model or keeps it, and the server's is
        evaluated at the end only."""
        schedule: dict[str, Any] = {"rounds": rounds, "evaluate_every": rounds + 1}
        if self.per_round < self.devices and self.why_not() is None:
            schedule["clients_per_round"] = self.per_round
        return Recipe.parse(
            {
                "name": "simulator",
                "seed": 0,
                "model": {"size": "vit-nano"},
                "data": self._data(folder),
                "partition": {"kind": "iid", "local_test": 0.0},
                "fleet": {"devices": [{"preset": "laptop", "count": self.devices, "rate": 1.0, "batch": BATCH}]},
                "training": {"epochs": 1, "optimizer": "sgd", "lr": RATE, "lr_schedule": "constant"},
                "schedule": schedule,
                "method": {"name": "fedavg"},
                "robust": {"bound": 0, "suspicion": "off"},
                "run": {"workers": workers, "device_models": 0},
            }
        )

    def _data(self, folder: Path) -> dict[str, Any]:
        """The digits; for more than a hundred devices as many times over as gives each the same dozen."""
        split = {"validation_fraction": 0.1, "test_fraction": 0.2}
        copies = -(-self.devices // 100)
        return {**({"source": "digits"} if copies == 1 else digits_over_and_over(folder, copies)), **split}

    def export(self, folder: Path) -> Path:
        """Shards and first weights in a file, for who does the same work without cos2p's runtime."""
        recipe = self.recipe(1, 1, folder)
        run_setup = build_run_setup(recipe)
        shards = [
            shard.train.batch(torch.arange(len(shard.train)), shard.normalize) for shard in run_setup.shards.values()
        ]
        weights = extract(
            first_weights(recipe, run_setup.config), run_setup.config, SubmodelSpec.full(run_setup.config)
        )
        path = folder / f"work-{self.devices}.pt"
        torch.save({"shards": shards, "weights": weights, "names": list(run_setup.shards)}, path)
        return path
