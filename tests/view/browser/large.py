"""A document of a large run, made of random figures in the shape of real ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from cos2p.seeding import numpy_rng
from cos2p.view.lanes import OUTCOMES, PHASES
from tests.view.browser.watched import sample

DEPTH, HEADS, UNITS = 12, 12, 3072
"""Of ViT-Base."""


def large_view(rounds: int, devices: int) -> dict[str, Any]:
    """Every device has one task in every round."""
    rng = numpy_rng(0, "large view")
    view = sample()
    run = view["runs"][0]
    tick = 0.001
    task = rng.integers([50, 2000, 9000, 12000, 200, 0], [90, 4000, 20000, 60000, 400, 20000], (devices, rounds, 6))
    lengths = task.reshape(devices, -1)
    end = int(lengths.sum(axis=1).max())
    order = [PHASES.index(name) for name in ("download", "prefix", "masks", "training", "upload", "idle")]
    lanes = []
    for device in range(devices):
        lanes.append(
            {
                "length": [*lengths[device].tolist(), end - int(lengths[device].sum())],
                "phase": [*(order * rounds), PHASES.index("idle")],
                "task": [*(np.repeat(np.arange(rounds), 6) * np.tile([1] * 6, rounds)).tolist(), -1],
                "version": list(range(rounds)),
                "tau": rng.integers(0, 5, rounds).tolist(),
                "outcome": [OUTCOMES.index("merged")] * rounds,
            }
        )
    count = rounds * devices
    start = rng.integers(0, DEPTH - 4, count)
    share = rng.random((rounds, 9)).round(4)
    run["header"] |= {"round": rounds, "rounds": rounds, "updates": count, "t": end * tick}
    run["model"] |= {"depth": DEPTH, "heads": HEADS, "units": UNITS}
    run["devices"] = [{**run["devices"][0], "name": f"jetson-orin-nano-{number}"} for number in range(devices)]
    run["lanes"] = {"tick": tick, "end": end, "phases": list(PHASES), "outcomes": list(OUTCOMES), "lanes": lanes}
    times = np.linspace(1, end * tick, rounds).round(3).tolist()
    column = share[:, 0].tolist()
    run["rounds"] |= {
        "version": list(range(1, rounds + 1)), "t": times, "updates": [devices] * rounds, "clients": [devices] * rounds,
        "n_star": [1] * rounds, "loss": column, "mask_loss": column, "client_top1": column, "ru": column,
        "bytes_up": list(range(rounds)), "bytes_down": list(range(rounds)),
    }  # fmt: skip
    run["evaluations"] |= {
        "version": list(range(1, rounds + 1)), "t": times, "validation": {"top1": column}, "test": {"top1": column},
        "exits": list(range(1, DEPTH + 1)), "exits_top1": [share[:, exit % 9].tolist() for exit in range(DEPTH)],
    }  # fmt: skip
    run["updates"] = {
        "round": np.repeat(np.arange(rounds), devices).tolist(), "client": list(range(devices)) * rounds,
        "t": np.repeat(times, devices).tolist(), "start": start.tolist(), "top": (start + 4).tolist(),
        "tau": rng.integers(0, 5, count).tolist(), "weight": rng.random(count).round(4).tolist(), "loss": [1.0] * count,
    }  # fmt: skip
    heads, units = rng.integers(1, 99, (DEPTH, HEADS)).tolist(), rng.integers(0, 99, (DEPTH, UNITS)).tolist()
    run["coverage"] = {
        "heads": heads, "units": units, "heads_clients": heads, "units_clients": units,
        "heads_last": heads, "units_last": units,
    }  # fmt: skip
    mask = {"heads": "ff0f", "units": rng.bytes(UNITS // 8).hex(), "version": rounds}
    agreement = rng.random((devices, devices)).round(3).tolist()
    kept = [[{"block": block, **mask} for block in range(DEPTH)] for _ in range(devices)]
    run["masks"] = {
        "devices": list(range(devices)),
        "kept": kept,
        "agreement_heads": agreement,
        "agreement_units": agreement,
    }
    return view
