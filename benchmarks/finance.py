"""Every run of smollm-finance in docs/results/language-models.md, one after the other, each kept as a small file.

    COS2P_DATA=<folder with weights/ and finance/> python -m benchmarks.finance --records docs/results/language-models

A run that has its file is not run again, so the list can be stopped and continued. Both test sets are scored apart, on
every eighth of PhraseBank's held-out texts and every fifteenth of the tweets.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.automatic import SEEDS, Job, run
from cos2p.data.paths import checkpoint_folder, find

LENGTH = ("data.train_samples=650", "schedule.updates=16", "data.test_samples=100")
ONE = ("fleet.devices.0.count=1", "fleet.devices.0.memory=8GB", "schedule.updates=2")
"""All texts on one device without a budget, as many passes over them as the fleet's devices take."""
METHODS: dict[str, tuple[str, tuple[str, ...], tuple[int, ...]]] = {
    "fedlora": ("fedlora", ("training.lr=1e-4",), SEEDS),
    "cos2p": ("cos2p", ("training.lr=5e-4", "method.prefix.precision=int8"), SEEDS),
    "lora": ("fedlora", ("training.lr=1e-4", *ONE), SEEDS),
    "full": ("fedavg", ("training.lr=2e-5", *ONE), SEEDS),
    "async": ("cos2p-async", ("training.lr=5e-4", "method.prefix.precision=int8"), (0,)),
    "fedrolex": ("fedrolex", ("training.lr=1e-4",), (0,)),
    "fedmezo": ("fedmezo", ("training.lr=1e-5",), (0,)),
}
"""A row of the table: the method, its changes, its seeds."""
SETS = {"fpb": 8, "tfns": 15}


def jobs() -> Iterator[Job]:
    for seed in SEEDS:
        for row, (method, changes, seeds) in METHODS.items():
            if seed in seeds:
                yield Job(f"finance-{row}-{seed}", "smollm-finance", seed, (*LENGTH, *changes), method)


def scores(model: Path, work: Path) -> dict[str, object]:
    """`cos2p evaluate` on both sets."""
    found: dict[str, object] = {}
    for name, every in SETS.items():
        lines = find("finance", f"test-{name}.jsonl").read_text().splitlines(keepends=True)
        part = work / f"test-{name}.jsonl"
        part.write_text("".join(lines[::every]))
        command = [sys.executable, "-m", "cos2p", "evaluate", str(model), "--data", str(part), "--batch", "8", "--json"]
        command += ["--text-column", "text", "--label-column", "label", "--prompt", "News: {text}\nSentiment:"]
        done = subprocess.run([*command, "--max-tokens", "96"], capture_output=True, text=True)
        figures = json.loads(done.stdout) if done.returncode == 0 else {"error": done.stderr[-1000:]}
        found[name] = {key: value for key, value in figures.items() if key not in ("data", "model")}  # local paths
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/finance"))
    parser.add_argument("--only", default="", help="rows whose name begins so; base: the model before training")
    options = parser.parse_args()
    for folder in (options.records, options.work):
        folder.mkdir(parents=True, exist_ok=True)
    if options.only == "base":
        found = scores(Path(checkpoint_folder("weights/smollm2-135m")), options.work)
        (options.records / "finance-base.json").write_text(json.dumps(found, indent=1) + "\n")
        return
    for job in jobs():
        if job.name.startswith(f"finance-{options.only}") and not (options.records / f"{job.name}.json").is_file():
            run(job, options.records, options.work, lambda out: scores(out, options.work))


if __name__ == "__main__":
    main()
