"""A run small enough for a test: four unequal devices, a few hundred digits, two rounds of seconds."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from cos2p.messages import Task
from cos2p.messages.packing import Packet
from cos2p.methods import method_class, run_task
from cos2p.models.layout import Weights
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import RunSetup
from cos2p.runtime.workers import TaskOutcome, pack_memory
from cos2p.training.client_cache import ClientCache
from cos2p.training.evaluation import evaluate_exits
from cos2p.training.masks import Remembered

VALUES: dict[str, Any] = {
    "name": "small",
    "seed": 3,
    "model": {"size": "vit-nano", "depth": 4, "dim": 32, "heads": 4, "mlp": 64},
    "data": {"source": "digits", "train_samples": 400, "test_samples": 100},
    "partition": {"alpha": 1.5, "local_test": 0.2},
    "fleet": {
        "devices": [
            {"preset": "jetson-xavier-nx-8gb", "count": 2, "rate": 0.0625, "batch": 16, "flops": 1e7},
            {"preset": "jetson-agx-orin-64gb", "count": 2, "rate": 0.5625, "batch": 32, "flops": 9e7},
        ]
    },
    "training": {"epochs": 1, "lr": 2e-3},
    "schedule": {"rounds": 5, "mu": 0.5, "t_clk": 2.0, "redispatch": "at-once", "evaluate_every": 2},
    "method": {"name": "cos2p", "masks": {"rounds": 2, "epochs": 1, "lr": 0.05}},
    "run": {"workers": 1, "checkpoint_seconds": 0.0},
}


def small(**changes: Any) -> Recipe:
    """The recipe above with tables replaced or extended: small(schedule={"rounds": 2})."""
    values = dict(VALUES)
    for name, change in changes.items():
        values[name] = {**values[name], **change} if isinstance(change, dict) else change
    return Recipe.parse(values)


class InlineWorkers:
    """Workers without processes: the job is done when it is asked for. Counts what it did."""

    def __init__(self, run_setup: RunSetup, client_cache: ClientCache | None = None) -> None:
        self.run_setup, self.trained, self.client_cache = run_setup, 0, client_cache

    def train(self, task: Packet, memory: Remembered) -> Future[TaskOutcome]:
        loaded = Task.from_bytes(bytes(task))
        shard = self.run_setup.shards[loaded.order.client]
        update, remembered = run_task(self.run_setup.config, loaded, shard, memory, self.client_cache)
        self.trained += 1
        return _done(TaskOutcome(update.to_bytes(), pack_memory(remembered)))

    def evaluate(self, weights: Weights, everything: bool = False) -> Future[dict[str, Any]]:
        test, normalize = self.run_setup.bundle.test, self.run_setup.recipe.data.normalize
        exits = tuple(range(1, self.run_setup.config.depth + 1))
        model = method_class(self.run_setup.recipe.method["name"]).evaluation_model(
            self.run_setup.config, weights, exits
        )
        scores = evaluate_exits(model, test, normalize)
        return _done({"test": {str(depth): value for depth, value in scores.items()}})


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
