"""Slopes in log-log, with 95 % intervals over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from torch import Tensor


@dataclass(frozen=True)
class Interval:
    mean: float
    half: float
    """Half of the width of the 95 % interval (Student's t)."""

    def __str__(self) -> str:
        return f"{self.mean:+.3f} ± {self.half:.3f}"


def interval(values: Sequence[float]) -> Interval:
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5
    return Interval(float(np.mean(values)), float(half))


def slope(xs: Sequence[float], ys: Sequence[Tensor]) -> Interval:
    """The exponent p of y ∝ xᵖ by least squares, fitted for each seed apart. `ys`: for each x one value per seed."""
    table = np.log(np.stack([y.numpy() for y in ys]).astype(np.float64))
    return interval(np.polyfit(np.log(xs), table, 1)[0].tolist())
