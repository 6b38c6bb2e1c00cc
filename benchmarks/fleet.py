"""A recipe simulated and run for real on this machine: does the simulation tell the truth?

    python -m benchmarks.fleet [--rounds 12] [--devices 4] [--out runs/benchmark-fleet]

The devices' speed is measured first: some tasks of each rate in a device's own training process, FLOP over processor
seconds. (The speed of bare steps is higher: a task also loads, evaluates and packs.) Then
the recipe runs on a fleet of separate processes over the loopback interface, each slowed down by its own factor, in
processor time, so that neighbours on the same core do not count as long as they leave it a share of 1 / factor. And
once more in virtual time, with the measured speeds and link. Also: latency of a task next to its work, MB/s, bytes
beyond the tensors', memory of the run's process at the server.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from cos2p.devices.clock import task_phases
from cos2p.fleet.admin.follow import run_on_fleet
from cos2p.fleet.admin.local import LocalFleet, make_local_fleet, running
from cos2p.fleet.device.jobs import Job, Setup
from cos2p.fleet.device.owner import DeviceFile
from cos2p.fleet.device.training import TrainingProcess
from cos2p.methods import build_method, make_contract
from cos2p.methods.base import Member
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import RunSetup, build_run_setup, first_weights
from cos2p.runtime.simulation import run as simulate
from cos2p.server.protocol import ClientJoined, Send
from cos2p.server.server import Server

SLOWDOWNS = (8.0, 12.0, 20.0, 32.0)
"""Each device's time in multiples of this machine's: four share two cores without getting in each other's way."""

RATES = (0.5625, 0.5625, 0.25, 0.0625)


def recipe(devices: int, rounds: int, flops: dict[float, float], link: float, latency: float, out: Path) -> Recipe:
    """The fleet of the benchmark, at the measured speeds; a trace in the folder `out` has the link's figures."""
    trace = out / "link.csv"
    trace.write_text(f"latency,jitter\n{latency},0\n", encoding="utf-8")
    groups = [
        {
            "preset": "laptop",
            "name": f"device{i}",
            "rate": RATES[i % 4],
            "batch": 16,
            "flops": flops[RATES[i % 4]] / SLOWDOWNS[i % 4],
            "memory": "2GB",
            "down": link,
            "up": link,
            "trace": str(trace),
        }
        for i in range(devices)
    ]
    return Recipe.parse(
        {
            "name": "benchmark-fleet",
            "model": {"size": "vit-nano", "dim": 192, "heads": 8, "mlp": 768},
            "data": {"source": "digits", "train_samples": 60 * devices, "test_samples": 100},
            "fleet": {"devices": groups},
            "training": {"epochs": 2, "lr": 1e-3},
            "schedule": {
                "rounds": rounds,
                "mu": 0.5,
                "t_clk": 4.0,
                "redispatch": "at-aggregation",  # else everybody is always busy, and RU tells nothing
                "evaluate_every": 10_000,
            },
            "method": {"name": "cos2p", "masks": {"epochs": 1, "rounds": 2}},
            "run": {"workers": 1},
        }
    )


def measured_speed(probe: Recipe, tasks: int = 8) -> dict[float, float]:
    """FLOP per processor second of each rate, over a device's first tasks: all windows, with masks and without."""
    run_setup, speeds = build_run_setup(probe), {}
    for rate in sorted(set(RATES)):
        member = next(member for member in run_setup.context.members.values() if member.rate == rate)
        flop, seconds = _calibrate(probe, run_setup, member, tasks)
        speeds[rate] = flop / seconds
    return speeds


def _calibrate(probe: Recipe, run_setup: RunSetup, member: Member, tasks: int) -> tuple[float, float]:
    context = replace(run_setup.context, members={member.name: member})
    server = Server(context, build_method(probe.method, context), first_weights(probe, run_setup.config))
    device = member.device.model_copy(update={"flops": 1.0})
    flop = seconds = 0.0
    setup = Setup(
        member.name,
        probe.model_dump(mode="json"),
        run_setup.config.to_dict(),
        list(run_setup.bundle.class_names),
        threads=1,
    )
    with tempfile.TemporaryDirectory() as folder:
        files = Job(*(str(Path(folder) / name) for name in ("task", "update", "remembered")))
        process = TrainingProcess(setup, Path(folder) / "training.log")
        effects = server.handle(ClientJoined(member.name))
        for _ in range(tasks):
            order = next(effect.order for effect in effects if isinstance(effect, Send))
            Path(files.task).write_bytes(server.orders.task(order).to_bytes())
            outcome = process.train(files)
            phases = task_phases(make_contract(run_setup.config, order), device, member.samples, member.test_samples, 0)
            flop += phases.prefix + phases.masks + phases.training
            seconds += outcome.numbers["cpu_seconds"]
            effects = server.receive(member.name, Path(files.update).read_bytes())
        process.stop()
    return flop, seconds


class Watch:
    """Peak memory of the run's process at the server."""

    def __init__(self, fleet: LocalFleet) -> None:
        self.peak, self._fleet, self._over = 0, fleet, threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while not self._over.wait(0.5):
            for process in self._fleet.server.processes():
                with suppress(psutil.Error):
                    if "nvflare.private.fed.app.server.runner_process" in process.cmdline():
                        self.peak = max(self.peak, process.memory_info().rss)

    def end(self) -> int:
        self._over.set()
        return self.peak


def on_the_fleet(chosen: Recipe, out: Path) -> tuple[dict[str, Any], int]:
    names = list(build_run_setup(chosen).context.members)
    devices = {name: DeviceFile(threads=1, slowdown=SLOWDOWNS[i % 4]) for i, name in enumerate(names)}
    fleet = make_local_fleet(out.with_name(out.name + "-kits"), chosen, devices)
    with running(fleet):
        watch = Watch(fleet)
        result = run_on_fleet(chosen, out, fleet.admin.folder, overwrite=True, expected=names)
        return result, watch.end()


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [event for event in found if event["kind"] == kind]


def round_seconds(folder: Path) -> list[float]:
    ends = [event["t"] for event in events(folder, "aggregated")]
    return [end - start for start, end in zip([0.0, *ends], ends, strict=False)]


def report(real: Path, virtual: Path, results: dict[str, dict[str, Any]], memory: int) -> None:
    arrived, given = events(real, "arrived"), {event["task"]: event for event in events(real, "dispatched")}
    rows = {
        "seconds of a round, mean": (statistics.mean(round_seconds(real)), statistics.mean(round_seconds(virtual))),
        "RU": (results["real"]["ru"], results["virtual"]["ru"]),
        "seconds in all": (results["real"]["virtual_seconds"], results["virtual"]["virtual_seconds"]),
        "updates": (results["real"]["updates"], results["virtual"]["updates"]),
        "mean staleness": tuple(mean_staleness(results[name]) for name in ("real", "virtual")),
    }
    print(f"{'':28}{'measured':>10}{'simulated':>11}{'ratio':>8}")
    for name, (measured, simulated) in rows.items():
        print(f"{name:28}{measured:>10.3f}{simulated:>11.3f}{simulated / measured if measured else 0:>8.2f}")
    order = [event["client"] for event in arrived]
    other = [event["client"] for event in events(virtual, "arrived")]
    alike = next((i for i, (a, b) in enumerate(zip(order, other, strict=False)) if a != b), min(len(order), len(other)))
    print(f"\narrivals in the same order: the first {alike} of {min(len(order), len(other))}")
    overheads = []
    for event in arrived:
        at_work = sum(event["measured"][part] for part in ("download", "training", "upload"))
        overheads.append(event["t"] - given[event["task"]]["t"] - at_work)
    megabytes = sum(given[event["task"]]["bytes"] for event in arrived) / 1e6
    seconds = sum(event["measured"]["download"] for event in arrived)
    print(f"latency of a task next to its work: {1000 * statistics.median(overheads):.0f} ms (median)")
    print(f"download: {megabytes / seconds:.1f} MB/s   server process: {memory / 1e6:.0f} MB at most")
    for event in events(real, "traffic"):
        down, up = (event[f"wire_{way}"] / event[f"tensors_{way}"] - 1 for way in ("down", "up"))
        print(f"{event['client']}: frames beyond tensors {down:.2%} down, {up:.2%} up")
    crowded = [own["seconds"] / own["cpu_seconds"] / slowdown(e["client"]) for e in arrived if (own := e["measured"])]
    print(f"wall over slowed processor seconds: {statistics.mean(crowded):.2f} (1: nobody was in the way)")


def slowdown(client: str) -> float:
    """Of the benchmark's device by its name, such as device2-1."""
    return SLOWDOWNS[int(client.removeprefix("device").partition("-")[0]) % 4]


def mean_staleness(result: dict[str, Any]) -> float:
    counts = {int(tau): count for tau, count in result["staleness"].items()}
    return float(sum(tau * count for tau, count in counts.items()) / max(1, sum(counts.values())))


def link_of(folder: Path) -> tuple[float, float]:
    """Bytes per second and seconds of latency of the real run's transfers."""
    arrived, given = events(folder, "arrived"), {event["task"]: event for event in events(folder, "dispatched")}
    rate = sum(given[e["task"]]["bytes"] for e in arrived) / sum(e["measured"]["download"] for e in arrived)
    others = [
        e["t"] - given[e["task"]]["t"] - sum(e["measured"][p] for p in ("download", "training", "upload"))
        for e in arrived
    ]
    return rate, max(0.0, statistics.median(others) / 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-fleet"))
    options = parser.parse_args()
    began = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    probe = recipe(options.devices, options.rounds, dict.fromkeys(RATES, 1e9), 1e8, 0.0, options.out)
    speeds = measured_speed(probe)
    print("FLOP/s on one core: " + ", ".join(f"{rate:g}: {speed / 1e9:.1f}e9" for rate, speed in speeds.items()))
    real, virtual = options.out / "real", options.out / "virtual"
    result, memory = on_the_fleet(recipe(options.devices, options.rounds, speeds, 1e8, 0.0, options.out), real)
    link, latency = link_of(real)
    simulated = simulate(
        recipe(options.devices, options.rounds, speeds, link, latency, options.out), virtual, overwrite=True
    )
    report(real, virtual, {"real": result, "virtual": simulated}, memory)
    print(f"took {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
