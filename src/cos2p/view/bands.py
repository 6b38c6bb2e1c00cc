"""Curves of one row of a study: the mean over its seeds with half its 95 % interval, as far as all seeds go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cos2p.numerics.metrics import mean_interval
from cos2p.view import model

POINTS = 120
"""Places at which curves of different runs are read; evaluations fall on other moments in each."""

AXES = ("rounds", "updates", "time")


@dataclass(frozen=True)
class Series:
    """What one run's curves are made of: for each point its round, updates and second, and the value there."""

    top1: tuple[tuple[float, float, float, float], ...]
    """(round, updates, seconds, value), ascending."""
    client_top1: tuple[tuple[float, float, float, float], ...]


def row_curves(key: str, title: str, runs: Sequence[Series]) -> model.StudyCurve:
    known = [run for run in runs if run.top1 or run.client_top1]
    return {
        "key": key,
        "title": title,
        "seeds": len(known),
        "top1": {axis: band([run.top1 for run in known], place) for place, axis in enumerate(AXES)},
        "client_top1": {axis: band([run.client_top1 for run in known], place) for place, axis in enumerate(AXES)},
    }


def band(runs: Sequence[Sequence[tuple[float, float, float, float]]], place: int) -> model.Band:
    """Between two points of a run its curve is a straight line; nothing is said before the first or after the last.

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
