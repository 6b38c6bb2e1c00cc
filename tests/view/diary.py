"""Logs written by hand for a small model (2 blocks, 4 heads, 8 units), and large ones as a simulation would write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from cos2p.models.spec import BlockKeep, SubmodelSpec
from cos2p.seeding import numpy_rng
from cos2p.tracking.event_kinds import Event
from cos2p.tracking.events import parse_event

MODEL: dict[str, Any] = {"family": "vit", "task": "classification", "depth": 2, "heads": 4, "kv_heads": 4, "mlp": 8,
                         "dim": 16, "head_dim": 4, "image": 4, "patch": 2, "channels": 1, "classes": 3}  # fmt: skip
SECONDS = {"download": 1.0, "prefix": 0.0, "masks": 2.0, "training": 6.0, "upload": 1.0}


class Diary:
    """Events in order: `Diary().started("a", "b").joined(0, "a").task(0, "a#0") …`"""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def add(self, kind: str, t: float, **fields: Any) -> Diary:
        self.events.append({"kind": kind, "t": t, **fields})
        return self

    def started(self, *names: str, rounds: int | None = 4, updates: int | None = None, **changes: Any) -> Diary:
        device = {"rate": 0.25, "samples": 10, "batch": 2, "memory": 1000, "flops": 1e6}
        facts = {"recipe": "by-hand", "method": "cos2p", "title": "Co-S²P", "seed": 0, "model": MODEL | changes}
        return self.add("started", 0.0, rounds=rounds, updates=updates, devices=dict.fromkeys(names, device), **facts)

    def joined(self, t: float, client: str) -> Diary:
        return self.add("joined", t, client=client)

    def task(self, t: float, task: str, version: int = 0, seconds: dict[str, float] | None = SECONDS) -> Diary:
        planned = {} if seconds is None else {"seconds": seconds}
        window = {"window": [0, 2], "exits": [2], "cycle": 0, "masks": True, "lr": 0.1}
        return self.add("dispatched", t, client=_client(task), task=task, version=version, bytes=100, peak_memory=900,
                        **window, **planned)  # fmt: skip

    def arrived(self, t: float, task: str, **fields: Any) -> Diary:
        return self.add("arrived", t, client=_client(task), task=task, bytes=50, **fields)

    def merged(
        self,
        t: float,
        task: str,
        tau: int = 0,
        blocks: dict[int, tuple[list[int], list[int]]] | None = None,
        gamma: float = 1.0,
        **report: Any,
    ) -> Diary:
        """`blocks`: what it kept, by block; none writes the event as older versions did."""
        window, kept = [0, 2], {}
        if blocks is not None:
            spec = SubmodelSpec(min(blocks), tuple(BlockKeep.of(*blocks[b]) for b in sorted(blocks)), (2,))
            window, kept = [spec.frozen, spec.top], {"kept": spec.to_dict()["window"]}
        weights = {"heads": gamma, "units": gamma, "shared": gamma}
        return self.add("merged", t, client=_client(task), task=task, version=0, staleness=tau, window=window, size=0.1,
                        weight=weights, report=report, **kept)  # fmt: skip

    def answered(self, t: float, task: str, tau: int = 0, **fields: Any) -> Diary:
        return self.arrived(t, task).merged(t, task, tau, **fields)

    def aggregated(self, t: float, version: int, clients: list[str], heads: Any = None, n_star: int = 1) -> Diary:
        cover = {"heads": heads or [[1] * 4] * 2, "units": [[0, 0.5]] * 2, "n_star": n_star}
        return self.add("aggregated", t, round=version - 1, version=version, clients=clients, updates=len(clients),
                        **cover)  # fmt: skip

    def evaluated(self, t: float, version: int, kind: str = "evaluated", **top1: float) -> Diary:
        """`validation=0.5`: top-1 at the deepest exit; at the shallow one it is half of that."""
        scores = {part: {"1": _scores(value / 2), "2": _scores(value)} for part, value in top1.items()}
        return self.add(kind, t, version=version, **scores)

    def finished(self, t: float, version: int, reason: str = "rounds", **top1: float) -> Diary:
        self.evaluated(t, version, "finished", **top1)
        self.events[-1]["reason"] = reason
        return self

    def reported(self) -> list[Event]:
        """As a reader of the log gets them."""
        return [found for line in self.lines().encode().splitlines() if (found := parse_event(line)) is not None]

    def lines(self) -> str:
        return "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in self.events)

    def write(self, folder: Path, mode: str = "w") -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".cos2p-run").touch()
        with (folder / "events.jsonl").open(mode, encoding="utf-8") as file:
            file.write(self.lines())
        return folder


def _client(task: str) -> str:
    return task.rpartition("#")[0]


def _scores(top1: float) -> dict[str, float]:
    return {"top1": top1, "top5": min(1.0, 2 * top1), "f1": top1 / 2}


def two_rounds() -> Diary:
    """Two devices; `b` is slower by half, so its first update is one version old. 25 seconds in all."""
    diary = Diary().started("a", "b", rounds=2).joined(0.0, "a").task(0.0, "a#0").joined(0.0, "b")
    diary.task(0.0, "b#0", seconds={**SECONDS, "training": 11.0})
    diary.answered(10.0, "a#0", blocks={0: ([0, 1], [0, 1, 2, 3])}, loss=2.0, local_top1=0.4, local_samples=10)
    diary.aggregated(10.0, 1, ["a"], [[1, 1, 0, 0], [0] * 4], n_star=0).task(10.0, "a#1", version=1)
    diary.answered(15.0, "b#0", 1, blocks={0: ([1, 2], [2, 3, 4, 5]), 1: ([3], [7])}, loss=1.0, local_top1=0.8, local_samples=30)  # fmt: skip  # noqa: E501
    diary.answered(20.0, "a#1", 0, blocks={0: ([0, 1], [0, 1, 2, 3])}, gamma=3.0, loss=3.0, local_top1=0.6, local_samples=10)  # fmt: skip  # noqa: E501
    diary.evaluated(20.0, 1, validation=0.5, test=0.4)
    diary.aggregated(20.0, 2, ["b", "a"], [[1, 2, 1, 0], [0, 0, 0, 1]], n_star=0)
    return diary.finished(25.0, 2, validation=0.7, test=0.6)


def large_run(rounds: int, devices: int, seed: int = 0) -> Diary:
    """As a simulation of Co-S²P writes it for vit-nano: masks change in the first 20 rounds and stay then."""
    rng = numpy_rng(seed, "large run")
    names = [f"jetson-orin-{number}" for number in range(devices)]
    diary = Diary().started(*names, rounds=rounds, depth=8, heads=8, kv_heads=8, mlp=256, dim=64, head_dim=8)
    free = np.zeros(devices)
    due = rng.uniform(40, 80, devices)
    for name, end in zip(names, due, strict=True):
        diary.joined(0.0, name).task(0.0, f"{name}#0", seconds=_split(end))
    masks = rng.random((devices, 8, 264)) < 0.6
    for version in range(1, rounds + 1):
        if version < 20:
            masks = rng.random((devices, 8, 264)) < 0.6
        for client in np.argsort(due):
            name, start = names[client], (version + int(client)) % 3
            kept = {b: (np.flatnonzero(masks[client, b, :8]).tolist(), np.flatnonzero(masks[client, b, 8:]).tolist())
                    for b in range(start, start + 6)}  # fmt: skip
            t = float(due[client])
            diary.answered(t, f"{name}#{version - 1}", int(client) % 4, blocks=kept, gamma=float(rng.uniform(0.1, 1)),
                           loss=float(rng.uniform(1, 3)), local_top1=0.4, local_samples=30)  # fmt: skip
            free[client] = t
        now = float(due.max())
        heads = [[3] * 8] * 8
        diary.aggregated(now, version, names, heads)
        diary.events[-1]["units"] = [[1, 2.5]] * 8
        due = now + rng.uniform(40, 80, devices)
        for client, name in enumerate(names):
            diary.task(now, f"{name}#{version}", version, _split(due[client] - now))
        if version % 5 == 0:
            diary.evaluated(now, version, validation=0.5, test=0.5)
    return diary


KINDS = ("phone", "pi", "laptop", "jetson")


def wide_run(devices: int, rounds: int, each: int) -> Diary:
    """Four kinds of devices, all here from the start, of which `each` others take part in every round."""
    rng = numpy_rng(0, "wide run")
    names = [f"{KINDS[number % 4]}-{number // 4 + 1}" for number in range(devices)]
    diary = Diary().started(*names, rounds=rounds, depth=8, heads=8, kv_heads=8, mlp=256, dim=64, head_dim=8)
    for name in names:
        diary.joined(0.0, name)
    for version in range(1, rounds + 1):
        begin, chosen = 100.0 * (version - 1), rng.permutation(devices)[:each]
        for client in chosen:
            diary.task(begin, f"{names[client]}#{version}", version - 1, _split(60.0))
        for client in chosen:
            start = int(rng.integers(0, 6))
            kept = {block: ([0, 1, 2, 3], list(range(0, 256, 2))) for block in range(start, start + 3)}
            diary.answered(begin + 60.0 + 0.1 * int(client % 100), f"{names[client]}#{version}", blocks=kept, loss=1.0,
                           local_top1=0.5, local_samples=9)  # fmt: skip
        diary.aggregated(begin + 99.0, version, [names[client] for client in chosen], [[3] * 8] * 8)
        diary.events[-1]["units"] = [[1, 2.5]] * 8
        diary.evaluated(begin + 99.0, version, validation=0.5, test=0.5)
    return diary


def _split(total: float) -> dict[str, float]:
    parts = {"download": 0.05, "prefix": 0.05, "masks": 0.3, "training": 0.5, "upload": 0.1}
    return {name: share * float(total) for name, share in parts.items()}
