"""The tables and the picture of docs/results/finetune.md, from the records next to it.

python -m benchmarks.finetune_page --records docs/results/finetune
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.automatic import SEEDS, write_page
from benchmarks.finetune import PEFT
from cos2p.numerics.metrics import mean_interval

HEAD = "| | peak, MB | predicted, MB | seconds | of peft's peak | of peft's seconds |"


def task_tables(records: Path) -> str:
    """One table a recipe: a task's peak and seconds beside peft's."""
    lines = []
    for name, rows in json.loads((records / "one-task.json").read_text()).items():
        peft = rows[PEFT]
        lines += [
            "",
            f"### {name}",
            "",
            "| | peak, MB | predicted, MB | seconds | of peft's peak | of peft's seconds |",
        ]
        lines.append("|---|---|---|---|---|---|")
        for title, found in rows.items():
            predicted = f"{found['predicted'] / 1e6:.0f}" if "predicted" in found else ""
            of_peak, of_seconds = found["peak"] / peft["peak"], found["seconds"] / peft["seconds"]
            figures = (
                f"{found['peak'] / 1e6:.0f} | {predicted} | {found['seconds']:.2f} | {of_peak:.2f} | {of_seconds:.2f}"
            )
            lines.append(f"| {title} | {figures} |")
    return "\n".join(lines).strip()


def job_table(records: Path) -> str:
    """The whole job: three seeds of each system."""
    lines = ["| | seeds | top-1 | client's memory | down | up |", "|---|---|---|---|---|---|"]
    peers = [json.loads(file.read_text()) for file in records.glob("job-flower-*.json")]
    best = max((run for run in peers if run["seed"] == SEEDS[0]), key=lambda run: run["validation_top1"])["lr"]
    chosen = [run for run in peers if run["lr"] == best]
    memory = f"{max(run['peak'] for run in chosen) / 1e6:.0f} MB, measured"
    lines.append(_row(f"Flower and peft, lr {best:g}", chosen, memory))
    for method, title in (("fedlora", "FedLoRA"), ("cos2p", "Co-S²P")):
        runs = [json.loads(file.read_text()) for file in sorted(records.glob(f"job-{method}-*.json"))]
        budget = next((change for run in runs for change in run["changes"] if "memory=" in change), "")
        memory = f"{int(budget.rpartition('=')[2] or 0) / 1e6:.0f} MB, the budget"
        lines.append(_row(title, [run["result"] for run in runs], memory))
    return "\n".join(lines)


def _row(title: str, runs: list[dict[str, Any]], memory: str) -> str:
    middle, half = mean_interval(100 * run["top1"] for run in runs)
    top1 = f"{middle:.1f} ± {half:.1f}" if len(runs) > 1 else f"{middle:.1f}"
    down, up = (f"{mean(run[way] for run in runs) / 1e6:.0f} MB" for way in ("bytes_down", "bytes_up"))
    return f"| {title} | {len(runs)} | {top1} | {memory} | {down} | {up} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, required=True)
    write_page(parser.parse_args().records, {"job": job_table, "tasks": task_tables})


if __name__ == "__main__":
    main()
