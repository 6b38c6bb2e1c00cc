"""What came out: the server's scores, the clients' own, how well the fleet was used, what was sent.

Fed by a driver as the run goes on, simulated or real; everything in it survives a checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from cos2p.messages import Order
from cos2p.methods.base import RunContext
from cos2p.numerics.metrics import busy_in

Interval = tuple[float, float]


class Scores:
    def __init__(self, context: RunContext) -> None:
        self._house = context
        self.down: Counter[str] = Counter()
        self.up: Counter[str] = Counter()
        self.tasks: Counter[str] = Counter()
        self.merged: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.staleness: Counter[int] = Counter()
        self.busy: dict[str, float] = dict.fromkeys(context.members, 0.0)
        """Seconds in which a device was at work, up to the end of the last round."""
        self.local: dict[str, dict[str, float]] = {}
        """Each client's last scores of its own submodel."""
        self.utilisation: list[float] = []
        """RU of each round."""
        self.n_star: int | None = None
        self.rounds = 0
        self.best: tuple[float, int] = (-1.0, 0)
        """Best validation top-1 and the version that had it."""
        self.since_best = 0
        self.last: dict[str, Any] = {}
        self.wall = 0.0
        self._working: dict[str, float] = {}
        self._intervals: dict[str, list[Interval]] = {}
        self._round_start = 0.0

    # ------------------------------------------------------------ while it runs

    def meet(self, context: RunContext) -> None:
        """Clients joined that were not known beforehand, or their figures changed."""
        self._house = context
        self.busy = dict.fromkeys(context.members, 0.0) | self.busy

    def dispatched(self, order: Order, now: float, nbytes: int) -> None:
        self.tasks[order.client] += 1
        self.down[order.client] += nbytes
        self._working[order.client] = now

    def uploaded(self, client: str, nbytes: int) -> None:
        self.up[client] += nbytes

    def idle(self, client: str, now: float) -> None:
        """The client's task is over, whichever way."""
        start = self._working.pop(client, None)
        if start is not None:
            self._intervals.setdefault(client, []).append((start, now))

    def note(self, kind: str, fields: Mapping[str, Any]) -> None:
        """What the server wrote down."""
        if kind == "merged":
            self.merged[fields["client"]] += 1
            self.staleness[fields["staleness"]] += 1
            own = {k.removeprefix("local_"): v for k, v in fields["report"].items() if k.startswith("local_")}
            if own.get("samples"):
                self.local[fields["client"]] = own
        elif kind == "refused":
            self.refused[fields["client"]] += 1
        elif kind == "aggregated":
            self.n_star = fields["n_star"] if self.n_star is None else min(self.n_star, fields["n_star"])

    def round_closed(self, now: float) -> None:
        """RU of the round: the busy seconds of those present, against as many as the busiest had."""
        busy = self._busy_between(self._round_start, now)
        present = [name for name, m in self._house.members.items() if m.device.present_at(now) or busy[name] > 0]
        longest = max((busy[name] for name in present), default=0.0)
        if longest > 0:
            self.utilisation.append(sum(busy[name] for name in present) / (len(present) * longest))
        for name, seconds in busy.items():
            self.busy[name] += seconds
        self._intervals = {}
        self._working = {client: max(start, now) for client, start in self._working.items()}
        self._round_start = now
        self.rounds += 1

    def _busy_between(self, start: float, end: float) -> dict[str, float]:
        busy = {}
        for name in self._house.members:
            intervals = list(self._intervals.get(name, []))
            if name in self._working:
                intervals.append((self._working[name], end))
            busy[name] = busy_in(intervals, start, end)
        return busy

    def evaluated(self, version: int, result: Mapping[str, Any]) -> None:
        self.last = {"version": version, **result}
        score = self._at_top(result, "validation").get("top1")
        if score is None:
            return
        if score > self.best[0]:
            self.best, self.since_best = (score, version), 0
        else:
            self.since_best += 1

    def out_of_patience(self, patience: int) -> bool:
        return 0 < patience <= self.since_best

    def final(self, version: int, result: Mapping[str, Any], now: float) -> None:
        self.evaluated(version, result)
        if now > self._round_start:
            for name, seconds in self._busy_between(self._round_start, now).items():
                self.busy[name] += seconds
        self.wall = now

    # ------------------------------------------------------------ what came out

    def result(self, peak_memory: Mapping[str, int]) -> dict[str, Any]:
        """The figures of `result.json`; `peak_memory` is the predicted bytes of each device's largest task."""
        top, chosen = self._at_top(self.last, "test"), self._at_top(self.last, "validation")
        members = self._house.members
        wall = self.wall or 1.0
        return {
            **{name: top.get(name) for name in ("top1", "top5", "f1")},
            **{f"validation_{name}": chosen.get(name) for name in ("top1", "top5", "f1")},
            **{f"client_{name}": self._client_mean(name) for name in ("top1", "top5", "f1")},
            "exits": {depth: scores["top1"] for depth, scores in self.last.get("test", {}).items()},
            "ru": sum(self.utilisation) / len(self.utilisation) if self.utilisation else None,
            "busy": sum(self.busy.values()) / (len(members) * wall),
            "virtual_seconds": self.wall,
            "rounds": self.rounds,
            "updates": sum(self.merged.values()),
            "refused": sum(self.refused.values()),
            "bytes_up": sum(self.up.values()),
            "bytes_down": sum(self.down.values()),
            "n_star": self.n_star,
            "staleness": {str(tau): count for tau, count in sorted(self.staleness.items())},
            "seed": self._house.seed,
            "devices": {
                name: {
                    "rate": member.rate,
                    "samples": member.samples,
                    "tasks": self.tasks[name],
                    "updates": self.merged[name],
                    "busy_seconds": self.busy[name],
                    "bytes_up": self.up[name],
                    "bytes_down": self.down[name],
                    "peak_memory": peak_memory.get(name),
                    "memory": member.device.memory,
                    "top1": self.local.get(name, {}).get("top1"),
                }
                for name, member in members.items()
            },
        }

    def _at_top(self, result: Mapping[str, Any], part: str) -> Mapping[str, float]:
        """Scores at the deepest exit."""
        by_exit = result.get(part, {})
        return by_exit[max(by_exit, key=int)] if by_exit else {}

    def _client_mean(self, name: str) -> float | None:
        """Average over the clients' own submodels, weighted by the size of their local test part."""
        scored = [own for own in self.local.values() if name in own]
        total = sum(own["samples"] for own in scored)
        return sum(own[name] * own["samples"] for own in scored) / total if total else None

    # ------------------------------------------------------------ checkpoint

    _COUNTERS = ("down", "up", "tasks", "merged", "refused")
    _PLAIN = (
        "busy",
        "local",
        "utilisation",
        "n_star",
        "rounds",
        "since_best",
        "last",
        "wall",
        "_working",
        "_round_start",
    )

    def to_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {name: dict(getattr(self, name)) for name in self._COUNTERS}
        state |= {name: getattr(self, name) for name in self._PLAIN}
        state["staleness"] = sorted(self.staleness.items())
        state["best"] = list(self.best)
        state["intervals"] = {name: [list(i) for i in intervals] for name, intervals in self._intervals.items()}
        return state

    def load_dict(self, state: Mapping[str, Any]) -> None:
        for name in self._COUNTERS:
            setattr(self, name, Counter(state[name]))
        for name in self._PLAIN:
            setattr(self, name, state[name])
        self.staleness = Counter({int(tau): int(count) for tau, count in state["staleness"]})
        self.best = (float(state["best"][0]), int(state["best"][1]))
        self._intervals = {name: [(a, b) for a, b in ivs] for name, ivs in state["intervals"].items()}
