"""CIFAR-10 trained to the end: every run of docs/results/to-the-end.md, one after the other, each kept as a small file.

    COS2P_DATA=<folder that holds cifar10/> python -m benchmarks.to_the_end --records docs/results/to-the-end/runs
    python -m benchmarks.to_the_end --records docs/results/to-the-end/runs --tables     the page's tables, no run

A run that has its file is not run again, so the list can be stopped at any moment and continued on another machine. A
run that was stopped goes on from its checkpoint in `--work`. Learning rates are chosen first, for every method from the
same three, by one run of a quarter of the length and its validation score. All runs take some thirty hours of one core.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from cos2p.numerics.metrics import mean_interval

RATES = (1e-3, 2e-3, 4.5e-3)
TRIAL_SEED = 1000
SEEDS = (0, 1, 2)
E1_MIX = {
    "fleet.devices.0.count": "1",
    "fleet.devices.1.count": "3",
    "fleet.devices.1.rate": "0.5625",
    "fleet.devices.2.count": "4",
    "fleet.devices.2.rate": "0.5625",
}


@dataclass(frozen=True)
class Row:
    """A line of the table: a method and what it changes in the recipe."""

    name: str
    method: str
    changes: Mapping[str, str] = field(default_factory=dict)
    seeds: tuple[int, ...] = SEEDS
    rate_of: str = ""
    """The row whose learning rate it takes; empty: one of its own is chosen."""


def form(name: str) -> dict[str, str]:
    return {"method.form": f'"{name}"'}


ROWS = (
    Row("growing", "cos2p", form("growing")),
    Row("fedrolex", "fedrolex"),
    Row("heterofl", "heterofl"),
    Row("published", "cos2p"),
    Row("small", "fedavg", {"model.depth": "1"}),
    Row("cheap", "cos2p", form("cheap")),
    Row("ramfed", "ramfed"),
    Row("prunefl", "prunefl"),
    Row("fedavg", "fedavg"),
    Row("async", "cos2p-async", seeds=(0,), rate_of="published"),
    Row("sync", "cos2p-sync", rate_of="published"),
    Row("no-distillation", "cos2p", {"method.exits.kind": '"none"'}, rate_of="published"),
    Row(
        "random-masks",
        "cos2p",
        {"method.masks.heads": '"random"', "method.masks.units": '"random"'},
        rate_of="published",
    ),
    *(
        Row(name, name, seeds=(0,))
        for name in ("fedasync", "fedbuff", "fedavg-platon", "fedavg-adavit", "fedpm", "fedmezo")
    ),
    *(
        Row(f"e1-{row}", method, {**E1_MIX}, seeds=(0,), rate_of=row)
        for row, method in (
            ("published", "cos2p"),
            ("fedrolex", "fedrolex"),
            ("heterofl", "heterofl"),
            ("fedavg", "fedavg"),
        )
    ),
)


@dataclass(frozen=True)
class Job:
    """One run."""

    name: str
    row: Row
    lr: float
    seed: int
    updates: int | None = None

    def command(self, out: Path) -> list[str]:
        changes = {**self.row.changes, "training.lr": repr(self.lr)}
        if self.updates:
            changes["schedule.updates"] = str(self.updates)
        settings = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
        go_on = ["--resume"] if (out / "checkpoint.safetensors").exists() else ["--overwrite"]
        start = [sys.executable, "-m", "cos2p", "run", "cifar10", "--method", self.row.method, "--out", str(out)]
        return [*start, "--seed", str(self.seed), "--workers", "1", "--quiet", *settings, *go_on]


def trials(row: Row) -> Iterator[Job]:
    for lr in RATES:
        yield Job(f"trial-{row.name}-{lr:g}", row, lr, TRIAL_SEED, updates=200)


def chosen_rate(row: Row, records: Path) -> float | None:
    """The rate with the best validation score; None until all trials are there."""
    owner = row.rate_of or row.name
    scores = {}
    for lr in RATES:
        record = records / f"trial-{owner}-{lr:g}.json"
        if not record.is_file():
            return None
        scores[lr] = json.loads(record.read_text())["result"]["validation_top1"]
    return max(scores, key=lambda lr: scores[lr])


def jobs(records: Path) -> Iterator[Job]:
    """In the order in which they are worth most: first seeds first, and a row's trials right before it."""
    for place in range(len(SEEDS)):
        for row in ROWS:
            if place >= len(row.seeds):
                continue
            if not row.rate_of:
                yield from trials(row)
            lr = chosen_rate(row, records)
            if lr is not None:
                yield Job(f"{row.name}-{row.seeds[place]}", row, lr, row.seeds[place])


def record(job: Job, out: Path, seconds: float) -> dict[str, Any]:
    """Everything of a run that the page needs: its figures and its curve, no weights."""
    from cos2p.studies.target import read_curve

    curve = [point.to_dict() for point in read_curve(out)]
    result = json.loads((out / "result.json").read_text())
    return {
        "name": job.name, "row": job.row.name, "method": job.row.method, "changes": dict(job.row.changes), "lr": job.lr,
        "seed": job.seed, "updates": job.updates, "seconds": round(seconds), "result": result, "curve": curve,
    }  # fmt: skip


def read_runs(records: Path) -> dict[str, list[dict[str, Any]]]:
    """The finished runs of every row that has one, trials apart."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for row in ROWS:
        files = [records / f"{row.name}-{seed}.json" for seed in row.seeds]
        if found := [json.loads(file.read_text()) for file in files if file.is_file()]:
            runs[row.name] = found
    return runs


def results_table(records: Path) -> str:
    """Every row that has a run: its score at the end; then what it spent until FedRolex's last score."""
    runs = read_runs(records)
    target = mean_interval(run["result"]["top1"] for run in runs["fedrolex"])[0]
    ends = ["| row | lr | seeds | top-1 | virtual time | sent |", "|---|---|---|---|---|---|"]
    costs = [f"| row, to {100 * target:.1f} % | virtual time | sent | processor |", "|---|---|---|---|"]
    for name, found in runs.items():
        results = [run["result"] for run in found]
        sent = mean(result["bytes_down"] + result["bytes_up"] for result in results)
        seconds = mean(result["virtual_seconds"] for result in results)
        cells = [name, f"{found[0]['lr']:g}", str(len(found)), _score(results), f"{seconds / 60:.0f} min"]
        ends.append("| " + " | ".join([*cells, f"{sent / 1e6:.0f} MB"]) + " |")
        costs.append("| " + " | ".join([name, *_cost(found, target)]) + " |")
    return "\n".join([*ends, "", *costs])


def trials_table(records: Path) -> str:
    """Validation scores of the three learning rates of every row that has all its trials."""
    lines = [f"| row | {' | '.join(f'{lr:g}' for lr in RATES)} |", "|---|" + "---|" * len(RATES)]
    for row in ROWS:
        if not row.rate_of and chosen_rate(row, records) is not None:
            found = [json.loads((records / f"{job.name}.json").read_text())["result"] for job in trials(row)]
            lines.append(f"| {row.name} | " + " | ".join(f"{100 * one['validation_top1']:.1f}" for one in found) + " |")
    return "\n".join(lines)


def _score(results: list[dict[str, Any]]) -> str:
    middle, half = mean_interval(100 * result["top1"] for result in results)
    return f"{middle:.1f} ± {half:.1f}" if len(results) > 1 else f"{middle:.1f}"


def _cost(found: list[dict[str, Any]], target: float) -> list[str]:
    """Virtual time, bytes and processor time until the target: means over seeds, dashes if one never reached it."""
    reached = [next((point for point in run["curve"] if point["top1"] >= target), None) for run in found]
    points = [point for point in reached if point is not None]
    if len(points) < len(found):
        return ["–"] * 3
    sent = mean(point["bytes_up"] + point["bytes_down"] for point in points)
    seconds = mean(point["virtual_seconds"] for point in points)
    processor = mean(point["processor_seconds"] for point in points)
    return [f"{seconds / 60:.0f} min", f"{sent / 1e6:.0f} MB", f"{processor / 60:.0f} min"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/to-the-end"))
    parser.add_argument("--hours", type=float, default=1e9, help="begin no run after so many hours")
    parser.add_argument("--tables", action="store_true", help="print the tables of the records and run nothing")
    options = parser.parse_args()
    if options.tables:
        print(results_table(options.records), trials_table(options.records), sep="\n\n")
        return
    options.records.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    while True:
        waiting = (job for job in jobs(options.records) if not (options.records / f"{job.name}.json").is_file())
        job = next(waiting, None)
        if job is None or time.monotonic() - begin > 3600 * options.hours:
            return
        out, started = options.work / job.name, time.monotonic()
        print(f"{time.strftime('%H:%M')} {job.name}", flush=True)
        subprocess.run(job.command(out), check=True)
        seconds = time.monotonic() - started
        text = json.dumps(record(job, out, seconds), indent=1) + "\n"
        (options.records / f"{job.name}.json").write_text(text)
        shutil.rmtree(out)
        print(f"      {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
