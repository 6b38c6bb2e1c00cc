"""Scores and losses as the run goes on: a row for each round, for each evaluation, for each update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from cos2p.view import model
from cos2p.view.log import Event

SCORES = ("top1", "top5", "f1")
Part = Literal["validation", "test", ""]


def rounded(value: Any, digits: int = 4) -> float | None:
    """A finite number, short; None for anything else (what a client reports can be anything)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        return None
    return round(float(value), digits)


class Rounds:
    """A row for each aggregation, and what adds up until the next one."""

    def __init__(self) -> None:
        self.rows: model.Rounds = {
            "version": [],
            "t": [],
            "updates": [],
            "clients": [],
            "n_star": [],
            "loss": [],
            "mask_loss": [],
            "client_top1": [],
            "ru": [],
            "bytes_up": [],
            "bytes_down": [],
        }
        self._losses: dict[str, list[float]] = {"loss": [], "mask_loss": []}
        self._own: dict[int, tuple[float, float]] = {}
        """Client → top-1 of its own submodel, samples behind it."""

    def merged(self, event: Event, client: int) -> None:
        report = event.get("report") or {}
        for name, values in self._losses.items():
            if (value := rounded(report.get(name))) is not None:
                values.append(value)
        top1, samples = rounded(report.get("local_top1")), rounded(report.get("local_samples"))
        if top1 is not None and samples:
            self._own[client] = (top1, samples)

    def aggregated(self, event: Event, ru: float | None, up: int, down: int) -> None:
        rows, losses = self.rows, {name: _mean(values) for name, values in self._losses.items()}
        rows["version"].append(event["version"])
        rows["t"].append(round(event["t"], 3))
        rows["updates"].append(event["updates"])
        rows["clients"].append(len(event["clients"]))
        rows["n_star"].append(event.get("n_star"))
        rows["loss"].append(losses["loss"])
        rows["mask_loss"].append(losses["mask_loss"])
        rows["client_top1"].append(self.client_top1())
        rows["ru"].append(rounded(ru))
        rows["bytes_up"].append(up)
        rows["bytes_down"].append(down)
        for values in self._losses.values():
            values.clear()

    def own_top1(self, client: int) -> float | None:
        return self._own[client][0] if client in self._own else None

    def client_top1(self) -> float | None:
        samples = sum(weight for _, weight in self._own.values())
        return rounded(sum(top1 * weight for top1, weight in self._own.values()) / samples) if samples else None


def _mean(values: list[float]) -> float | None:
    return rounded(sum(values) / len(values)) if values else None


class Evaluations:
    def __init__(self) -> None:
        self._found: dict[int, tuple[float, Mapping[str, Any]]] = {}
        """Version → when it was made, and its scores by part and exit."""
        self._made: dict[int, float] = {0: 0.0}

    def aggregated(self, event: Event) -> None:
        self._made[event["version"]] = event["t"]

    def evaluated(self, event: Event) -> None:
        """Scores come a while after the version was made; they belong to the moment it was."""
        version = event["version"]
        parts = {part: event[part] for part in ("validation", "test") if event.get(part)}
        if parts:
            self._found[version] = (self._made.get(version, float(event["t"])), parts)

    @property
    def part(self) -> Part:
        """What the run is judged by."""
        for part in ("validation", "test"):
            if any(part in parts for _, parts in self._found.values()):
                return part
        return ""

    def top1(self, part: str) -> list[tuple[int, float]]:
        """(version, top-1 at the deepest exit), ascending."""
        found = ((v, rounded(_deepest(self._found[v][1].get(part, {})).get("top1"))) for v in sorted(self._found))
        return [(version, top1) for version, top1 in found if top1 is not None]

    def document(self) -> model.Evaluations:
        versions, part = sorted(self._found), self.part
        exits = sorted({int(depth) for v in versions for depth in self._found[v][1].get(part, {})})
        return {
            "version": versions,
            "t": [round(self._found[v][0], 3) for v in versions],
            "validation": self._scores(versions, "validation"),
            "test": self._scores(versions, "test"),
            "exits": exits,
            "exits_part": part,
            "exits_top1": [
                [rounded(self._found[v][1].get(part, {}).get(str(depth), {}).get("top1")) for v in versions]
                for depth in exits
            ],
        }

    def _scores(self, versions: list[int], part: str) -> dict[str, list[float | None]]:
        if not any(part in self._found[v][1] for v in versions):
            return {name: [] for name in SCORES}
        rows = [_deepest(self._found[v][1].get(part, {})) for v in versions]
        return {name: [rounded(row.get(name)) for row in rows] for name in SCORES}


def _deepest(by_exit: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = by_exit[max(by_exit, key=int)] if by_exit else {}
    return found


class Updates:
    def __init__(self) -> None:
        self.rows: model.Updates = {
            "round": [],
            "client": [],
            "t": [],
            "start": [],
            "top": [],
            "tau": [],
            "weight": [],
            "loss": [],
        }

    def merged(self, event: Event, client: int, current: int) -> None:
        rows = self.rows
        rows["round"].append(current)
        rows["client"].append(client)
        rows["t"].append(round(event["t"], 2))
        rows["start"].append(event["window"][0])
        rows["top"].append(event["window"][1])
        rows["tau"].append(event["staleness"])
        rows["weight"].append(None)
        rows["loss"].append(rounded((event.get("report") or {}).get("loss"), 3))

    def weigh(self, weights: list[float | None]) -> list[tuple[int, float]]:
        """Of the last updates, whose round is closed now; returns (client, weight) of those that have one."""
        first = len(self.rows["weight"]) - len(weights)
        if weights:
            self.rows["weight"][first:] = [rounded(weight) for weight in weights]
        pairs = zip(self.rows["client"][first:], weights, strict=True)
        return [(client, weight) for client, weight in pairs if weight is not None]
