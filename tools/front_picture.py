"""The picture of README: accuracy against memory per device, from the records in docs/results/pretrained.

python -m tools.front_picture        writes docs/images/memory.svg
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cos2p.numerics.metrics import mean_interval

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "docs" / "results" / "pretrained"
PICTURE = ROOT / "docs" / "images" / "memory.svg"

Point = tuple[str, str, float | None]
"""A record, the method in it, and megabytes per device; None: as many as its largest device took."""

PANELS: dict[str, dict[str, list[Point]]] = {
    "MiniLM on TREC": {
        "Co-S²P": [
            ("minilm-trec-told-head-30-factors", "cos2p", 30),
            ("minilm-trec-told-head-frontier", "cos2p", 58),
        ],
        "FedLoRA": [("minilm-trec-told-head-frontier", "fedlora", 58)],
        "FedRolex": [("minilm-trec-told-head-frontier", "fedrolex", 58)],
        "full fine-tuning": [("minilm-trec-told-head", "fedavg", None)],
    },
    "DINOv2 on Caltech-101": {
        "Co-S²P": [
            ("dino-caltech101-frontier-80", "cos2p", 80),
            ("dino-caltech101-frontier-factors", "cos2p", 120),
        ],
        "FedLoRA": [("dino-caltech101-frontier-80", "fedlora", 80), ("dino-caltech101-frontier", "fedlora", 160)],
        "FedRolex": [("dino-caltech101-frontier-80", "fedrolex", 80), ("dino-caltech101-frontier", "fedrolex", 160)],
        "full fine-tuning": [("dino-caltech101", "fedavg", None)],
    },
}
TICKS = {"MiniLM on TREC": [30, 58, 262], "DINOv2 on Caltech-101": [80, 120, 160, 672]}
STYLES = {
    "Co-S²P": {"color": "#0072b2", "marker": "o", "linewidth": 2.2, "markersize": 7},
    "FedLoRA": {"color": "#d55e00", "marker": "s"},
    "FedRolex": {"color": "#777777", "marker": "^"},
    "full fine-tuning": {"color": "#222222", "marker": "*", "markersize": 12},
}


def figures(record: str, method: str) -> tuple[float, float, float]:
    """Mean top-1 in percent over the seeds, half of its interval, and megabytes of the largest device."""
    study, *lines = map(json.loads, (RECORDS / record / "runs.jsonl").read_text(encoding="utf-8").splitlines())
    # A frontier's further runs, at equal time, have another number of updates.
    chosen = (run for run in lines if run["method"] == method and run["updates"] == study["updates"])
    runs: list[dict[str, Any]] = [run["result"] for run in chosen]
    mean, half = mean_interval([100 * run["top1"] for run in runs])
    return mean, half, max(device["peak_memory"] for run in runs for device in run["devices"].values()) / 1e6


def main() -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "cos2p", "svg.fonttype": "none", "font.size": 10})
    from matplotlib import pyplot

    picture, panels = pyplot.subplots(1, 2, figsize=(8.6, 3.1), layout="constrained")
    for axes, (title, series) in zip(panels, PANELS.items(), strict=True):
        for name, points in series.items():
            found = [(figures(record, method), memory) for record, method, memory in points]
            x = [memory if memory is not None else peak for (_, _, peak), memory in found]
            y, halves = [mean for (mean, _, _), _ in found], [half for (_, half, _), _ in found]
            axes.errorbar(x, y, yerr=halves, label=name, capsize=3, elinewidth=0.8, **STYLES[name])
        axes.set(title=title, xlabel="memory per device, MB", xscale="log")
        axes.set_xticks(TICKS[title], map(str, TICKS[title]))
        axes.set_xticks([], minor=True)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("test accuracy, %")
    panels[0].legend(frameon=False, loc="lower right", fontsize=9)
    picture.savefig(PICTURE, metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    main()
