"""Processor time of one update in the simulator, against a plain loop of the same work and against other simulators.

    python -m benchmarks.simulator [--repeats 3] [--rounds 2 6] [--workers 1 2] [--peers] [--devices 100 1000]

Each entry runs twice as a process of its own, for few and for more rounds: the difference over the updates between the
two is what an update costs, what is left over is the start and the end. Entries take turns, everything is repeated, and
medians are shown; the ratio is to the loop with one worker in the same turn. `--peers` makes an environment for
pfl-research, FedLab and Flower if there is none (minutes, 2 GB).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.environment import PeersMissing, python
from benchmarks.simulator.meter import Failed, run_metered
from benchmarks.simulator.workload import Workload

ROOT = Path(__file__).parents[2]
FLOOR = "plain loop"
PEERS = {"pfl-research": ("pfl_fedavg", (1,)), "FedLab": ("fedlab_fedavg", (1,)), "Flower": ("flower_fedavg", (1, 2))}
"""Their scripts, and the numbers of workers that they can be asked for on one machine."""


@dataclass(frozen=True)
class Entry:
    name: str
    workers: int
    command: list[str]
    """Without the number of rounds, which follows `--rounds`."""


@dataclass(frozen=True)
class Cost:
    update: float
    """Processor seconds."""
    start: float
    """Wall seconds that no round explains: start and end."""
    start_processor: float
    wall: float
    """Wall seconds of one update."""


def entries(work: Workload, folder: Path, workers: list[int], with_peers: bool) -> Iterator[Entry]:
    file = work.export(folder)
    shared = [str(file), "--per-round", str(work.per_round)]
    for count in workers:
        ours = [sys.executable, "-m", "benchmarks.simulator.floor", *shared, "--workers", str(count)]
        yield Entry(FLOOR, count, ours)
        if reason := work.why_not():
            print(f"cos2p, {count} worker(s), is left out: {reason}")
        else:
            command = [sys.executable, "-m", "benchmarks.simulator.ours", str(folder), "--workers", str(count)]
            yield Entry("cos2p", count, [*command, "--devices", str(work.devices), "--per-round", str(work.per_round)])
    if with_peers:
        yield from _peers(shared, workers)


def _peers(shared: list[str], workers: list[int]) -> Iterator[Entry]:
    try:
        interpreter = python()
    except PeersMissing as reason:
        print(f"the peers are left out: {reason}")
        return
    for name, (script, offered) in PEERS.items():
        for count in workers:
            if count in offered:
                command = [str(interpreter), "-m", f"benchmarks.peers.{script}", *shared, "--workers", str(count)]
                yield Entry(name, count, command)


def cost(entry: Entry, work: Workload, rounds: tuple[int, int]) -> Cost:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    few, more = (run_metered([*entry.command, "--rounds", str(count)], environment) for count in rounds)
    between = (rounds[1] - rounds[0]) * work.per_round
    update, wall = (more.processor - few.processor) / between, (more.wall - few.wall) / between
    done = rounds[0] * work.per_round
    return Cost(update, few.wall - done * wall, few.processor - done * update, wall)


def measure(work: Workload, folder: Path, options: argparse.Namespace) -> None:
    print(f"\n{work}, two steps each; rounds {options.rounds[0]} and {options.rounds[1]}, {options.repeats} turns")
    found: dict[tuple[str, int], list[Cost]] = {}
    left_out: set[tuple[str, int]] = set()
    running = list(entries(work, folder, options.workers, options.peers))
    for _ in range(options.repeats):
        for entry in running:
            key = (entry.name, entry.workers)
            if key in left_out:
                continue
            try:
                spent = cost(entry, work, tuple(options.rounds))
                found.setdefault(key, []).append(spent)
                print(f"  {entry.name}, {entry.workers} worker(s): {1e3 * spent.update:.1f} ms an update", flush=True)
            except Failed as reason:
                left_out.add(key)
                print(f"{entry.name}, {entry.workers} worker(s), is left out: {reason}")
    show({key: costs for key, costs in found.items() if key not in left_out})


def show(found: dict[tuple[str, int], list[Cost]]) -> None:
    floor = found[FLOOR, 1]
    columns = (
        "workers",
        "CPU ms/update",
        "ratio",
        "ratio in turns",
        "wall ms/update",
        "ratio",
        "start s",
        "start CPU s",
    )
    print(f"{'':<14}" + "".join(f"{column:>16}" for column in columns))
    for (name, workers), costs in found.items():
        ratios = sorted(own.update / base.update for own, base in zip(costs, floor, strict=True))
        walls = [own.wall / base.wall for own, base in zip(costs, floor, strict=True)]
        cells = (
            str(workers),
            f"{1e3 * statistics.median(c.update for c in costs):.1f}",
            f"{statistics.median(ratios):.2f}",
            f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
            f"{1e3 * statistics.median(c.wall for c in costs):.1f}",
            f"{statistics.median(walls):.2f}",
            f"{statistics.median(c.start for c in costs):.1f}",
            f"{statistics.median(c.start_processor for c in costs):.1f}",
        )
        print(f"{name:<14}" + "".join(f"{cell:>16}" for cell in cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, nargs=2, default=[2, 6], metavar=("FEW", "MORE"))
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--devices", type=int, nargs="+", default=[100, 1000], help="of which 100 take part in a round")
    parser.add_argument("--peers", action="store_true", help="with pfl-research, FedLab and Flower")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for devices in options.devices:
            measure(Workload(devices, min(devices, 100)), Path(folder), options)


if __name__ == "__main__":
    main()
