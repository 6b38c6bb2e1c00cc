"""What the automatic choices reach: plans from nothing but a device's memory, and learning rates that devices find.

    COS2P_DATA=<folder with the weights and data> python -m benchmarks.automatic plans --records docs/results/automatic

One small file for each run; a run that has its file is not run again, so the list can be stopped and continued.
`rates` runs a grid with one seed, then the grid's best rate and `auto` with two more.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

SEEDS = (0, 1, 2)
DINO = ("schedule.updates=40", "data.test_samples=600")
"""As in the records of docs/results/pretrained.md that the plans are compared with."""
PLANS = (
    ("minilm-trec", ("30MB", "58MB", "120MB"), ()),
    ("dino-caltech101", ("80MB", "120MB", "160MB"), DINO),
)
PRETRAINED, FRESH = ("1e-4", "3e-4", "1e-3", "2e-3"), ("5e-4", "1e-3", "2e-3", "4e-3", "8e-3")
GRIDS = {
    "demo": (FRESH, ()),
    "fashion-mini": (FRESH, ()),
    "minilm-trec": (PRETRAINED, ()),
    "minilm-banking77": (PRETRAINED, ()),
    "dino-caltech101": (("3e-5", "1e-4", "3e-4", "1e-3"), DINO),
}
METHODS = ("cos2p", "fedlora", "fedavg")


@dataclass(frozen=True)
class Job:
    name: str
    recipe: str
    seed: int
    changes: tuple[str, ...]
    method: str = "cos2p"


def plans(only: str) -> Iterator[Job]:
    for recipe, memories, changes in PLANS:
        for seed in SEEDS:
            for memory in memories:
                own = [f"fleet.devices.{n}.{field}" for n in range(3) for field in (f"memory={memory}", "rate=auto")]
                if only in recipe:
                    yield Job(f"plan-{recipe}-{memory}-{seed}", recipe, seed, (*changes, *own))


def rates(only: str, records: Path) -> Iterator[Job]:
    for recipe, (grid, changes) in GRIDS.items():
        for method in METHODS:
            if only not in f"{recipe}-{method}":
                continue
            for lr in ("auto", *grid):
                yield _rate(recipe, method, lr, 0, changes)
            best = max(grid, key=lambda lr: _score(records, recipe, method, lr))
            for seed in SEEDS[1:]:
                for lr in ("auto", best):
                    yield _rate(recipe, method, lr, seed, changes)


def _rate(recipe: str, method: str, lr: str, seed: int, changes: tuple[str, ...]) -> Job:
    return Job(f"rate-{recipe}-{method}-{lr}-{seed}", recipe, seed, (*changes, f"training.lr={lr}"), method)


def _score(records: Path, recipe: str, method: str, lr: str) -> float:
    found = json.loads((records / f"rate-{recipe}-{method}-{lr}-0.json").read_text())["result"]
    return float(found.get("top1") or 0.0)


def run(job: Job, records: Path, work: Path, look: Callable[[Path], dict[str, object]] = lambda _: {}) -> None:
    """Run it and keep its figures, and what `look` finds in its folder."""
    out, began = work / job.name, time.monotonic()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    changes = [word for change in ("schedule.evaluate_every=1000", *job.changes) for word in ("--set", change)]
    go_on = ["--resume"] if (out / "checkpoint.safetensors").exists() else ["--overwrite"]
    command = [sys.executable, "-m", "cos2p", "run", job.recipe, "--method", job.method, "--out", str(out)]
    command += ["--seed", str(job.seed), "--workers", "1", "--quiet", *changes, *go_on]
    print(f"{time.strftime('%H:%M')} {job.name}", flush=True)
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    found: dict[str, object] = {"name": job.name, "recipe": job.recipe, "method": job.method, "seed": job.seed}
    found |= {"changes": list(job.changes), "seconds": round(time.monotonic() - began)}
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found["processor_seconds"] = round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    if done.returncode == 0:
        result = json.loads((out / "result.json").read_text())
        found["result"] = {name: value for name, value in result.items() if isinstance(value, int | float | str)}
        log = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
        found["rated"] = [entry for entry in log if "rated" in entry.values()]
        found |= look(out)
    else:  # a diverged run is a result: it counts as nothing learnt
        found["result"], found["error"] = {}, done.stderr[-2000:]
    (records / f"{job.name}.json").write_text(json.dumps(found, indent=1) + "\n")
    shutil.rmtree(out, ignore_errors=True)
    print(f"      {found['seconds']} s, {json.dumps(found['result'])[:200]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("plans", "rates"))
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/automatic"))
    parser.add_argument("--only", default="", help="recipes (of rates: recipe-method) that contain this")
    options = parser.parse_args()
    options.records.mkdir(parents=True, exist_ok=True)
    todo = plans(options.only) if options.what == "plans" else rates(options.only, options.records)
    for job in todo:
        if not (options.records / f"{job.name}.json").is_file():
            run(job, options.records, options.work)


if __name__ == "__main__":
    main()
