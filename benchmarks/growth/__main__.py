"""How costs grow: a device with R, the server with devices and the model, a simulation with devices, a run with rounds.

    python -m benchmarks.growth [--only "server and model"] [--repeats 3] [--notes FILE] [--figure FILE]

Every law is measured at a few sizes; the exponent p of cost ∝ sizeᵖ is fitted for each repetition, and shown with a
95 % interval next to the one it should have. Measurements are noted as they come (`--notes`): stopped, it goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch

from benchmarks.convergence.plot import figure
from benchmarks.growth.costs import LAWS
from benchmarks.growth.laws import Notes


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", choices=[law.name for law in LAWS], help="this law alone")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--notes", type=Path, default=Path("runs/growth.jsonl"))
    parser.add_argument("--figure", type=Path, help="write the curves here, as SVG")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    options.notes.parent.mkdir(parents=True, exist_ok=True)
    notes, panels = Notes(options.notes), []
    print("| | against | at | exponent | should be |\n|---|---|---|---|---|")
    for law in LAWS:
        if options.only and law.name not in options.only:
            continue
        points = notes.points(law, options.repeats)
        panels.append(law.panel(points))
        values = ", ".join(f"{size:.3g}: {median(point):.3g}" for size, point in zip(law.sizes, points, strict=True))
        fitted = str(law.exponent(points)) if options.repeats > 1 else "one repetition"
        print(f"| {law.name}, {law.cost} | {law.size} | {values} | {fitted} | {law.expected:g} |", flush=True)
    if options.figure:
        options.figure.write_text(
            figure(panels, "Costs against sizes in log-log; dashed: the slope each should have"), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
