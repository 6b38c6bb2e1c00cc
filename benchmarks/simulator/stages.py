"""Where an update's processor time goes in cos2p: the stages of a task, timed in one process.

    python -m benchmarks.simulator.stages [--rounds 5] [--devices 1000] [--apart]

The workload of `benchmarks.simulator` with the worker inside the simulation's own process, so that one clock sees both
sides; of the way between them the pipes and the memory next to them are missing. With `--apart` it has a process of
its own, and only the whole can be told. The first round warms up and is not counted. Of the others every second one is
timed stage by stage; what that costs (fifty calls of a clock for an update) is not in the ones between, which are
compared with the plain loop. It does a round after each of them: what others do to the machine meanwhile, they do to
both.
"""

from __future__ import annotations

import argparse
import importlib
import pickle
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.peers.work import load
from benchmarks.simulator.floor import play
from benchmarks.simulator.workload import Workload
from cos2p.runtime import workers
from cos2p.runtime.simulation import run
from cos2p.tracking.event_kinds import Aggregated, Event

STAGES = {
    "server: cut the task's weights": ("cos2p.server.orders", "Orders.task"),
    "server: pack the task": ("cos2p.messages", "Task.packet"),
    "server: how long it takes (clock)": ("cos2p.runtime.simulation", "task_phases"),
    "server: decide and dispatch": ("cos2p.server.server", "Server.order"),
    "device: unpack the task": ("cos2p.messages", "Task.unpack"),
    "device: make the model": ("cos2p.models.transformer", "ElasticTransformer.__init__"),
    "device: load the weights": ("cos2p.models.transformer", "ElasticTransformer.load"),
    "device: make the optimiser": ("cos2p.training.trainer", "make_optimizer"),
    "device: forward": ("cos2p.models.transformer", "ElasticTransformer.forward"),
    "device: loss": ("cos2p.training.trainer", "exits_loss"),
    "device: backward": ("torch", "Tensor.backward"),
    "device: step": ("cos2p.numerics.optimizers", "SGD.step"),
    "device: test itself (without forward)": ("cos2p.training.trainer", "Trainer.scores"),
    "device: the rest of training (copies, delta)": ("cos2p.training.trainer", "Trainer.train"),
    "device: pack the update": ("cos2p.messages", "Update.packet"),
    "on the way, both ways": ("benchmarks.simulator.stages", "passed"),
    "server: compare the update with its task": ("cos2p.server.update_reader", "UpdateReader.open"),
    "server: unpack and check it": ("cos2p.server.update_reader", "UpdateReader.read"),
    "server: bound it": ("cos2p.aggregation.robust.filter", "RobustFilter.take"),
    "server: merge": ("cos2p.aggregation.merge", "SegmentMerge.add"),
    "server: close the round": ("cos2p.aggregation.merge", "SegmentMerge.apply"),
    "server: forget": ("cos2p.server.server", "Server._forget"),
    "log": ("cos2p.tracking.events", "EventLog.write"),
}
"""By their names in the table, in the order of an update's life. What a stage calls of the others is counted there."""


class Clock:
    """Processor seconds by stage, each without the stages inside it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inside = [0.0]
        self._plain: list[tuple[Any, str, Any]] = []
        """What is watched, as it was."""

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
            self._plain.append((holder, name, raw))
            setattr(holder, name, classmethod(timed) if bound else timed)

    def detach(self) -> None:
        while self._plain:
            setattr(*self._plain.pop())


class Inline:
    """A pool of processes that has none: the task is done at once, here. Bytes take the way they would take."""

    def __init__(self, count: int, start: Callable[..., None], *arguments: Any) -> None:
        start(*arguments)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(passed(function(*passed(arguments))))
        return future

    def close(self) -> None:
        """Nothing to stop."""


def passed(value: Any) -> Any:
    """As it arrives at the other end."""
    return pickle.loads(pickle.dumps(value))


@dataclass(frozen=True)
class Found:
    """Seconds per update, over all rounds but the first."""

    stages: dict[str, float]
    timed: list[float]
    """In all, of the rounds that were timed stage by stage."""
    ours: list[float]
    """In all, of the others, round by round."""
    loop: list[float]
    """The plain loop after each of them."""


def spent() -> float:
    """Processor seconds of this process and of its workers."""
    total = time.process_time()
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            total += sum(child.cpu_times()[:2])
    return total


def stages(work: Workload, rounds: int, apart: bool = False) -> Found:
    clock = Clock()
    if not apart:
        workers.ProcessPool = Inline  # type: ignore[misc, assignment]
    timed: list[float] = []
    ours: list[float] = []
    loop: list[float] = []
    began, done = 0.0, 0
    with tempfile.TemporaryDirectory() as folder:
        file = work.export(Path(folder))
        names = torch.load(file, weights_only=True)["names"]
        floor = load(argparse.Namespace(file=file, rounds=1, per_round=work.per_round, workers=1))

        def listener(event: Event) -> None:
            nonlocal began, done
            if not isinstance(event, Aggregated):
                return
            ended, done = spent(), done + 1
            watched = bool(clock.seconds) and done % 2 == 1
            clock.detach()
            if watched:
                timed.append((ended - began) / work.per_round)
            else:
                play(floor, names)
                if began:
                    ours.append((ended - began) / work.per_round)
                    loop.append((spent() - ended) / work.per_round)
            if not apart and done % 2 == 0 and done < rounds:  # behind the last round comes the evaluating of the model
                clock.attach()
            began = spent()

        run(work.recipe(rounds, 1, Path(folder)), Path(folder) / "run", listener=listener)
    updates = max(1, len(timed)) * work.per_round
    return Found({stage: clock.seconds[stage] / updates for stage in STAGES}, timed, ours, loop)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--devices", type=int, default=100, help="of which 100 take part in a round")
    parser.add_argument("--apart", action="store_true", help="the worker in a process of its own")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = stages(Workload(options.devices, min(options.devices, 100)), options.rounds, options.apart)
    if found.timed:
        total = statistics.mean(found.timed)
        for stage, seconds in found.stages.items():
            print(f"{stage:<48}{1e3 * seconds:>8.2f} ms{seconds / total:>7.0%}")
        print(f"{'not in any of these':<48}{1e3 * (total - sum(found.stages.values())):>8.2f} ms")
        print(f"{'in all, timed stage by stage':<48}{1e3 * total:>8.2f} ms")
    print(f"{'in all':<48}{1e3 * statistics.mean(found.ours):>8.2f} ms")
    print(f"{'the plain loop between the rounds':<48}{1e3 * statistics.mean(found.loop):>8.2f} ms")
    ratios = sorted(own / base for own, base in zip(found.ours, found.loop, strict=True))
    print(f"ratio {statistics.median(ratios):.2f}, round by round {ratios[0]:.2f} to {ratios[-1]:.2f}")


if __name__ == "__main__":
    main()
