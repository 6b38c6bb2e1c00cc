"""What is measured: a device, the server, a whole simulation, and what a run leaves on disk."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.coordinator import Play, memory
from benchmarks.growth.laws import Law
from benchmarks.measure import Measurement, measure
from benchmarks.merge import random_delta
from benchmarks.simulator.stages import spent
from benchmarks.simulator.workload import digits_over_and_over
from cos2p.aggregation.merge import Contribution, SegmentMerge
from cos2p.costs.fitting import make_spec
from cos2p.costs.shape import Workload
from cos2p.models.layout import init_weights, parameter_count
from cos2p.models.sizes import model_config
from cos2p.recipe import Recipe
from cos2p.runtime.simulation import run
from cos2p.tracking.event_kinds import Aggregated, Event

RATES = (1 / 64, 1 / 16, 1 / 4, 9 / 16, 1.0)
WIDTHS = (128, 192, 256, 384, 512)


def _client(rate: float) -> Measurement:
    """A task of vit-tiny (25.8 M) with a batch of 4, its window at the bottom: nothing is frozen, so R is all."""
    config = model_config("vit-tiny")
    return measure(config, make_spec(config, rate), Workload(batch=4), steps=2, threads=1)


def client_memory(rate: float) -> float:
    return _client(rate).peak_bytes / 1e6


def client_time(rate: float) -> float:
    return _client(rate).cpu_seconds


def merge_time(width: float) -> float:
    """One update of R = 1/4 added and the round closed, by the parameters of the model in millions."""
    config = model_config("vit-tiny", dim=int(width), mlp=4 * int(width))
    spec, weights = make_spec(config, 0.25), init_weights(config, 0)
    delta = random_delta(config, spec)
    merge = SegmentMerge(config)
    began = time.process_time()
    for _ in range(4):
        merge.add(Contribution("a", spec, delta, 100, 0, received=weights), weights)
        merge.apply(weights)
    return (time.process_time() - began) / 4


def millions(width: float) -> float:
    return parameter_count(model_config("vit-tiny", dim=int(width), mlp=4 * int(width))) / 1e6


def event_time(devices: float) -> float:
    """Microseconds of the coordinator for one event."""
    play = Play(int(devices), None)
    play.join()
    began = time.process_time()
    for _ in range(5_000):
        play.event()
    return (time.process_time() - began) / 5_000 * 1e6


def devices_memory(devices: float) -> float:
    """Megabytes that the coordinator holds, all of the devices at work."""
    return memory(int(devices)) / 1e6


def _small(devices: int, rounds: int, data: Mapping[str, Any] | None = None) -> Recipe:
    """Four samples a device, one of which it tests itself on."""
    return Recipe.parse(
        {
            "name": "growth",
            "model": {"size": "vit-nano", "depth": 4, "dim": 32, "heads": 4, "mlp": 64},
            "data": {**(data or {"source": "digits"}), "train_samples": 4 * devices, "test_samples": 50},
            "partition": {"kind": "iid", "local_test": 0.25},
            "fleet": {"devices": [{"preset": "laptop", "count": devices, "rate": 0.25, "batch": 4}]},
            "training": {"epochs": 1},
            "schedule": {"rounds": rounds, "evaluate_every": 10 * rounds},
            "method": {"name": "cos2p", "masks": {"heads": "fixed", "units": "fixed"}},
            "run": {"workers": 1, "checkpoint_seconds": 0.0},
        }
    )


def simulation_time(devices: float) -> float:
    """Processor seconds of the second round, of server and worker. Of more than 200 devices each has four digits that
    others have, too: there are only 1,797."""
    with tempfile.TemporaryDirectory() as folder:
        data = None if devices <= 200 else digits_over_and_over(Path(folder), copies=-(-int(devices) // 200))
        closed: list[float] = []

        def listener(event: Event) -> None:
            if isinstance(event, Aggregated):
                closed.append(spent())

        run(_small(int(devices), 2, data), Path(folder) / "run", listener=listener)
        return closed[1] - closed[0]


def log_bytes(rounds: float) -> float:
    with tempfile.TemporaryDirectory() as folder:
        run(_small(8, int(rounds)), Path(folder) / "run")
        return (Path(folder) / "run" / "events.jsonl").stat().st_size / 1e3


def checkpoint_bytes(rounds: float) -> float:
    with tempfile.TemporaryDirectory() as folder:
        run(_small(8, int(rounds)), Path(folder) / "run")
        return (Path(folder) / "run" / "checkpoint.safetensors").stat().st_size / 1e3


def idle_checkpoint(devices: float) -> float:
    """Kilobytes that the coordinator adds to a checkpoint while 50 of the devices take part."""
    play = Play(int(devices), 50)
    play.join()
    return len(json.dumps(play.coordinator.to_dict())) / 1e3


LAWS = (
    Law("memory of a device", "peak, MB", "R", RATES, 1.0, client_memory),
    Law("time of a device", "seconds a step", "R", RATES, 1.0, client_time),
    Law(
        "server and model",
        "seconds an update",
        "parameters, M",
        tuple(millions(width) for width in WIDTHS),
        1.0,
        lambda size: merge_time(min(WIDTHS, key=lambda width: abs(millions(width) - size))),
    ),
    Law("server and devices", "µs an event", "devices", (100, 1_000, 10_000, 100_000), 0.0, event_time),
    Law("server's memory", "MB of the coordinator", "devices", (100, 1_000, 10_000, 100_000), 1.0, devices_memory),
    Law("simulation", "processor seconds of a round", "devices", (25, 50, 100, 200, 500, 1_000), 1.0, simulation_time),
    Law("log", "kB", "rounds", (4, 8, 16, 32), 1.0, log_bytes),
    Law("checkpoint", "kB", "rounds", (4, 8, 16, 32), 0.0, checkpoint_bytes),
    Law("checkpoint, 50 of them busy", "kB", "devices", (100, 1_000, 10_000), 0.0, idle_checkpoint),
)
