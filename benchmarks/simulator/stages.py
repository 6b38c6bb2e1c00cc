"""Where an update's processor time goes in cos2p: the stages of a task, timed in one process.

    python -m benchmarks.simulator.stages [--rounds 3]

The workload of `benchmarks.simulator` with the worker inside the simulation's own process, so that one clock sees both
sides; what is missing is the pipe between them. The first round warms up and is not counted.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch

from benchmarks.simulator.workload import Workload
from cos2p.runtime import workers
from cos2p.runtime.run import run
from cos2p.tracking.event_kinds import Aggregated, Event

STAGES = {
    "server: cut the task's weights": ("cos2p.runtime.server", "Server.task"),
    "server: pack the task": ("cos2p.messages", "Task.to_bytes"),
    "server: how long it takes (clock)": ("cos2p.runtime.simulation", "task_phases"),
    "server: decide and dispatch": ("cos2p.runtime.server", "Server.order"),
    "device: unpack the task": ("cos2p.messages", "Task.from_bytes"),
    "device: make the model": ("cos2p.models.transformer", "ElasticTransformer.made"),
    "device: load the weights": ("cos2p.models.transformer", "ElasticTransformer.load"),
    "device: make the optimiser": ("cos2p.training.trainer", "make_optimizer"),
    "device: forward": ("cos2p.models.transformer", "ElasticTransformer.forward"),
    "device: loss": ("cos2p.training.trainer", "exits_loss"),
    "device: backward": ("torch", "Tensor.backward"),
    "device: step": ("torch.optim", "SGD.step"),
    "device: test itself (without forward)": ("cos2p.training.trainer", "Trainer.scores"),
    "device: the rest of training (copies, delta)": ("cos2p.training.trainer", "Trainer.train"),
    "device: pack the update": ("cos2p.messages", "Update.to_bytes"),
    "server: compare the update with its task": ("cos2p.aggregation.door", "Door.open"),
    "server: unpack and check it": ("cos2p.aggregation.door", "Door.read"),
    "server: bound it": ("cos2p.aggregation.robust.guard", "Guard.take"),
    "server: merge": ("cos2p.aggregation.merge", "SegmentMerge.add"),
    "server: close the round": ("cos2p.aggregation.merge", "SegmentMerge.apply"),
    "server: forget": ("cos2p.runtime.server", "Server._forget"),
    "log": ("cos2p.tracking.events", "EventLog.write"),
}
"""By their names in the table, in the order of an update's life. What a stage calls of the others is counted there."""


class Clock:
    """Processor seconds by stage, each without the stages inside it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inside = [0.0]

    def watch(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            self._inside.append(0.0)
            start = time.process_time()
            try:
                return function(*arguments, **options)
            finally:
                spent = time.process_time() - start
                self.seconds[stage] += spent - self._inside.pop()
                self._inside[-1] += spent

        return timed

    def attach(self) -> None:
        for stage, (module, path) in STAGES.items():
            holder: Any = importlib.import_module(module)
            *classes, name = path.split(".")
            for part in classes:
                holder = getattr(holder, part)
            raw = vars(holder)[name]
            bound = isinstance(raw, classmethod)
            timed = self.watch(stage, raw.__func__ if bound else raw)
            setattr(holder, name, classmethod(timed) if bound else timed)


class Inline:
    """A pool of processes that has none: the task is done at once, here."""

    def __init__(self, count: int, start: Callable[..., None], *arguments: Any) -> None:
        start(*arguments)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*arguments))
        return future

    def close(self) -> None:
        """Nothing to stop."""


def stages(work: Workload, rounds: int) -> tuple[dict[str, float], float]:
    """(seconds of each stage, seconds in all) per update, over all rounds but the first."""
    clock = Clock()
    clock.attach()
    workers.ProcessPool = Inline  # type: ignore[misc, assignment]
    marks: list[tuple[float, dict[str, float]]] = []

    def listener(event: Event) -> None:
        if isinstance(event, Aggregated):
            marks.append((time.process_time(), dict(clock.seconds)))

    with tempfile.TemporaryDirectory() as folder:
        run(work.recipe(rounds, 1, Path(folder)), Path(folder) / "run", listener=listener)
    (first, before), (last, after) = marks[0], marks[-1]
    updates = (rounds - 1) * work.per_round
    return {stage: (after[stage] - before.get(stage, 0.0)) / updates for stage in STAGES}, (last - first) / updates


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found, total = stages(Workload(100, 100), options.rounds)
    for stage, seconds in found.items():
        print(f"{stage:<48}{1e3 * seconds:>8.2f} ms{seconds / total:>7.0%}")
    print(f"{'not in any of these':<48}{1e3 * (total - sum(found.values())):>8.2f} ms")
    print(f"{'in all':<48}{1e3 * total:>8.2f} ms")


if __name__ == "__main__":
    main()
