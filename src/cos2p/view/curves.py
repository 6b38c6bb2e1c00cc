"""Scores and losses as the run goes on: a row for each round, for each evaluation, for each update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from cos2p.tracking.event_kinds import Aggregated, Evaluated, Finished, Merged
from cos2p.tracking.figure_parts import LIKELIHOOD, SCORES, RoundFigures, best_exit, deepest, number
from cos2p.tracking.figures import RunFigures
from cos2p.view import model

Part = Literal["validation", "test", ""]


def rounded(value: Any, digits: int = 4) -> float | None:
    """A sane number, short; None for anything else."""
    found = number(value)
    return None if found is None else round(float(found), digits)


class Rounds:
    """A row for each aggregation."""

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

    def add(self, closed: RoundFigures, run: RunFigures) -> None:
        rows, event = self.rows, closed.event
        rows["version"].append(event.version)
        rows["t"].append(round(event.t, 3))
        rows["updates"].append(event.updates)
        rows["clients"].append(len(event.clients))
        rows["n_star"].append(event.n_star)
        rows["loss"].append(rounded(closed.loss))
        rows["mask_loss"].append(rounded(closed.mask_loss))
        rows["client_top1"].append(rounded(closed.client_top1))
        rows["ru"].append(rounded(closed.ru))
        rows["bytes_up"].append(run.total("bytes_up"))
        rows["bytes_down"].append(run.total("bytes_down"))


class Evaluations:
    def __init__(self) -> None:
        self._found: dict[int, tuple[float, Mapping[str, Any]]] = {}
        """Version → when it was made, and its scores by part and exit."""
        self._made: dict[int, float] = {0: 0.0}

    def aggregated(self, event: Aggregated) -> None:
        self._made[event.version] = event.t

    def evaluated(self, event: Evaluated | Finished) -> None:
        """Scores come a while after the version was made; they belong to the moment it was."""
        parts = {part: by_exit for part, by_exit in (("validation", event.validation), ("test", event.test)) if by_exit}
        if parts:
            self._found[event.version] = (self._made.get(event.version, event.t), parts)

    @property
    def part(self) -> Part:
        """What the run is judged by."""
        for part in ("validation", "test"):
            if any(part in parts for _, parts in self._found.values()):
                return part
        return ""

    def top1(self, part: str) -> list[tuple[int, float]]:
        """(version, top-1 at the deepest exit), ascending."""
        found = ((v, rounded(deepest(self._found[v][1].get(part, {})).get("top1"))) for v in sorted(self._found))
        return [(version, top1) for version, top1 in found if top1 is not None]

    def better_exit(self) -> model.BestExit | None:
        """Of a shallower exit that was better than the deepest at the last evaluation."""
        if not self._found:
            return None
        part, scores = self.part, self._found[max(self._found)][1].get(self.part, {})
        best, last = best_exit(scores), max(map(int, scores), default=None)
        if best is None or last is None or best == last or scores[str(last)].get("top1") is None:
            return None
        return {
            "depth": best,
            "top1": round(scores[str(best)]["top1"], 4),
            "deepest": last,
            "deepest_top1": round(scores[str(last)]["top1"], 4),
            "perplexity": rounded(scores[str(best)].get("perplexity"), 3),
            "deepest_perplexity": rounded(scores[str(last)].get("perplexity"), 3),
            "part": part,
        }

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
        rows = [deepest(self._found[v][1].get(part, {})) for v in versions]
        known = [*SCORES, *(name for name in LIKELIHOOD if any(name in row for row in rows))]
        return {name: [rounded(row.get(name)) for row in rows] for name in known}


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

    def merged(self, event: Merged, client: int, current: int) -> None:
        rows = self.rows
        rows["round"].append(current)
        rows["client"].append(client)
        rows["t"].append(round(event.t, 2))
        rows["start"].append(event.window[0])
        rows["top"].append(event.window[1])
        rows["tau"].append(event.staleness)
        rows["weight"].append(None)
        rows["loss"].append(rounded(event.report.get("loss"), 3))

    def weigh(self, weights: list[float | None]) -> list[tuple[int, float]]:
        """Of the last updates, whose round is closed now; returns (client, weight) of those that have one."""
        first = len(self.rows["weight"]) - len(weights)
        if weights:
            self.rows["weight"][first:] = [rounded(weight) for weight in weights]
        pairs = zip(self.rows["client"][first:], weights, strict=True)
        return [(client, weight) for client, weight in pairs if weight is not None]
