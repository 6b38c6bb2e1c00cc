"""Scores and losses as a run goes on: a row for each round, each evaluation, each update.

Of a study: for each of its rows the mean over its seeds with half its 95 % interval, as far as all seeds go.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cos2p.numerics.metrics import mean_interval
from cos2p.tracking.event_kinds import Aggregated, Evaluated, Finished, Merged
from cos2p.tracking.figure_parts import LIKELIHOOD, SCORES, RoundFigures, best_exit, deepest, number
from cos2p.tracking.figures import RunFigures


def rounded(value: Any, digits: int = 4) -> float | None:
    """A sane number, short; None for anything else."""
    found = number(value)
    return None if found is None else round(float(found), digits)


def _table(*names: str) -> dict[str, list[Any]]:
    return {name: [] for name in names}


def _append(rows: Mapping[str, Any], **values: Any) -> None:
    for name, value in values.items():
        rows[name].append(value)


class RoundsBuilder:
    """One row for each aggregation; row i closed round i and made version i + 1."""

    def __init__(self) -> None:
        self.rows = _table(
            "version", "t", "updates", "clients", "n_star", "lr", "loss", "mask_loss", "client_top1", "ru", "bytes_up",
            "bytes_down",
        )  # fmt: skip

    def add(self, closed: RoundFigures, run: RunFigures) -> None:
        event = closed.event
        _append(
            self.rows,
            version=event.version,
            t=round(event.t, 3),
            updates=event.updates,
            clients=len(event.clients),  # different ones
            n_star=event.n_star,
            lr=None if closed.loss is None else rounded(run.lr, 8),
            loss=rounded(closed.loss),
            mask_loss=rounded(closed.mask_loss),
            client_top1=rounded(closed.client_top1),
            ru=rounded(closed.ru),
            bytes_up=run.total("bytes_up"),  # until then; likewise down
            bytes_down=run.total("bytes_down"),
        )


class EvaluationsBuilder:
    """Scores of every version that was evaluated: the last one of a finished run on all test samples, earlier ones
    perhaps on the first few hundred. A list is empty if the run has no such part."""

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
    def part(self) -> str:
        """The samples that the run is evaluated on."""
        for part in ("validation", "test"):
            if any(part in parts for _, parts in self._found.values()):
                return part
        return ""

    def top1(self, part: str) -> list[tuple[int, float]]:
        """(version, top-1 at the deepest exit), ascending."""
        found = ((v, rounded(deepest(self._found[v][1].get(part, {})).get("top1"))) for v in sorted(self._found))
        return [(version, top1) for version, top1 in found if top1 is not None]

    def better_exit(self) -> dict[str, Any] | None:
        """A shallower exit that was better than the deepest at the last evaluation."""
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

    def document(self) -> dict[str, Any]:
        versions, part = sorted(self._found), self.part
        exits = sorted({int(depth) for v in versions for depth in self._found[v][1].get(part, {})})
        return {
            "version": versions,
            "t": [round(self._found[v][0], 3) for v in versions],  # when each was made
            "validation": self._scores(versions, "validation"),
            "test": self._scores(versions, "test"),
            "exits": exits,
            "exits_part": part,
            "exits_top1": [  # [exit][evaluation]
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


class UpdatesBuilder:
    """One row for each merged update, in order of arrival: windows, weights, staleness.

    `weight` is γ̃, its mean share in the segments it held, among the updates of its round that held them; 1 if it was
    alone. The log has γ as its mean over heads and over units, so this is exact for uniform weights and weights by
    samples, and close for those that differ from segment to segment. Null while its round is open.
    """

    def __init__(self) -> None:
        self.rows = _table("round", "client", "t", "start", "top", "tau", "weight", "loss")

    def merged(self, event: Merged, client: int, current: int) -> None:
        (start, top), loss = event.window, rounded(event.report.get("loss"), 3)
        place = {"round": current, "client": client, "t": round(event.t, 2)}
        _append(self.rows, **place, start=start, top=top, tau=event.staleness, weight=None, loss=loss)

    def weigh(self, weights: list[float | None]) -> list[tuple[int, float]]:
        """Fill in those of the last updates, whose round is closed now; returns (client, weight) where there is one."""
        first = len(self.rows["weight"]) - len(weights)
        if weights:
            self.rows["weight"][first:] = [rounded(weight) for weight in weights]
        pairs = zip(self.rows["client"][first:], weights, strict=True)
        return [(client, weight) for client, weight in pairs if weight is not None]


# ---------------------------------------------------------------- a row of a study

POINTS = 120
"""Places at which curves of different runs are read; evaluations fall on other moments in each."""

AXES = ("rounds", "updates", "time")


@dataclass(frozen=True)
class Series:
    """The points of one run's curves: for each point its round, updates and second, and the value there."""

    top1: tuple[tuple[float, float, float, float], ...]
    """(round, updates, seconds, value), ascending."""
    client_top1: tuple[tuple[float, float, float, float], ...]


def row_curves(key: str, title: str, runs: Sequence[Series]) -> dict[str, Any]:
    known = [run for run in runs if run.top1 or run.client_top1]
    return {
        "key": key,
        "title": title,
        "seeds": len(known),
        "top1": {axis: band([run.top1 for run in known], place) for place, axis in enumerate(AXES)},
        "client_top1": {axis: band([run.client_top1 for run in known], place) for place, axis in enumerate(AXES)},
    }


def band(runs: Sequence[Sequence[tuple[float, float, float, float]]], place: int) -> dict[str, list[Any]]:
    """Mean over seeds with half its 95 % interval (null for fewer than two), as far as all seeds go.

    Between two points of a run its curve is a straight line; nothing is said before the first or after the last.

    >>> lines = [[(0, 0, 0, 0.0), (2, 0, 0, 0.2)], [(0, 0, 0, 0.2), (1, 0, 0, 0.4)]]
    >>> band(lines, 0)["x"], [round(mean, 3) for mean in band(lines, 0)["mean"]]
    ([0.0, 1.0], [0.1, 0.25])
    """
    curves = [_points(run, place) for run in runs if len(run)]
    if not curves:
        return {"x": [], "mean": [], "half": []}
    low, high = max(float(x[0]) for x, _ in curves), min(float(x[-1]) for x, _ in curves)
    at = _places([x for x, _ in curves], low, high)
    values = [np.interp(at, x, y) for x, y in curves]
    summary = [mean_interval([float(run[i]) for run in values]) for i in range(len(at))]
    return {
        "x": [round(float(x), 3) for x in at],
        "mean": [round(mean, 5) for mean, _ in summary],
        "half": [None if math.isnan(half) else round(half, 5) for _, half in summary],
    }


def _points(run: Sequence[tuple[float, ...]], place: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    points = {float(point[place]): float(point[3]) for point in run}  # several at one place: the last holds
    ordered = sorted(points.items())
    return np.array([x for x, _ in ordered]), np.array([y for _, y in ordered])


def _places(xs: Sequence[NDArray[np.float64]], low: float, high: float) -> NDArray[np.float64]:
    """Where runs have points anyway, if those are few; else evenly."""
    if high < low:
        return np.array([])
    shared = np.unique(np.concatenate([x[(x >= low) & (x <= high)] for x in xs]))
    return shared if len(shared) <= POINTS else np.linspace(low, high, POINTS)
