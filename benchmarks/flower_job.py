"""A whole federated fine-tuning beside Flower and peft: the same split, texts, batch, passes and rank.

    COS2P_DATA=<folder with the weights and data> python -m benchmarks.flower_job --records docs/results/finetune

MiniLM on TREC, eight clients, four passes of each over its texts, LoRA of rank 32 on all linear layers; every client
has the checkpoint in its own files. Flower's learning rate is the best of a grid by the validation texts, with the
first seed; ours is `auto`. Our clients may take a third of what Flower's take. One small file for each run; a run that
has its file is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from benchmarks.automatic import SEEDS, Job, run
from benchmarks.finetune import everywhere
from benchmarks.peers.environment import python as peers_python
from cos2p.data.examples import Examples
from cos2p.data.paths import checkpoint_folder
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import build_run_setup

RECIPE, RANK, BATCH, ROUNDS = "minilm-trec", 32, 16, 4
RATES = (1e-4, 3e-4, 1e-3, 3e-3)


def texts(seed: int, file: Path) -> None:
    """What every client of the recipe trains on, and what the server's model is judged by."""
    run_setup = build_run_setup(Recipe.load(RECIPE, [f"seed={seed}"], method="fedavg"))
    bundle = run_setup.bundle
    shards = [padded(shard.train) for shard in run_setup.shards.values()]
    parts = {"validation": padded(bundle.validation), "test": padded(bundle.test)}
    torch.save({"shards": shards, "classes": bundle.classes, **parts}, file)


def padded(part: Examples) -> tuple[Tensor, Tensor]:
    return part.inputs[torch.arange(len(part))], part.labels


def flower(seed: int, lr: float, interpreter: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder, "texts.pt"), Path(folder, "out.jsonl")
        texts(seed, file)
        folder_of_weights = str(checkpoint_folder("all-MiniLM-L6-v2-fp16"))
        command = [str(interpreter), "-m", "benchmarks.peers.flower_lora", str(file), "--out", str(out)]
        command += ["--pretrained", folder_of_weights, "--lr", repr(lr), "--seed", str(seed)]
        command += ["--rounds", str(ROUNDS), "--rank", str(RANK), "--batch", str(BATCH)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode or not out.is_file():
            raise SystemExit(f"Flower failed: {done.stderr[-2000:]}")
        *tasks, scores = [json.loads(line) for line in out.read_text().splitlines()]
    return {
        "seed": seed, "lr": lr, "top1": scores["test"], "validation_top1": scores["validation"], "tasks": len(tasks),
        "client_seconds": sum(task["seconds"] for task in tasks), "peak": max(task["peak"] for task in tasks),
        "bytes_down": sum(task["down"] for task in tasks), "bytes_up": sum(task["up"] for task in tasks),
    }  # fmt: skip


def ours(method: str, seed: int, memory: int) -> Job:
    devices = [
        f"fleet.devices.{n}.{field}" for n in range(3) for field in (f"memory={memory}", "rate=auto", "base=true")
    ]
    lora = (*everywhere(RECIPE), f"method.rank={RANK}") if method == "fedlora" else ()
    return Job(f"job-{method}-{seed}", RECIPE, seed, (*devices, *lora), method)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/flower-job"))
    parser.add_argument("--peers", type=Path, help="an interpreter with flwr, peft and transformers; else one is made")
    options = parser.parse_args()
    options.records.mkdir(parents=True, exist_ok=True)
    interpreter = options.peers or peers_python()

    def flower_run(seed: int, lr: float) -> dict[str, Any]:
        file = options.records / f"job-flower-{lr:g}-{seed}.json"
        if not file.is_file():
            print(file.stem, flush=True)
            file.write_text(json.dumps(flower(seed, lr, interpreter), indent=1) + "\n")
        found: dict[str, Any] = json.loads(file.read_text())
        return found

    grid = [flower_run(SEEDS[0], lr) for lr in RATES]
    best = max(grid, key=lambda found: found["validation_top1"])["lr"]
    peers = [flower_run(seed, best) for seed in SEEDS]
    third = round(mean(found["peak"] for found in peers) / 3)
    for seed in SEEDS:
        for method in ("fedlora", "cos2p"):
            job = ours(method, seed, third)
            if not (options.records / f"{job.name}.json").is_file():
                run(job, options.records, options.work)


if __name__ == "__main__":
    main()
