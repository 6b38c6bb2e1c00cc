"""A law: how a cost grows with a size, measured a few times at each of a few sizes, and the exponent that fits."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.convergence.fits import Interval, slope
from benchmarks.convergence.plot import Panel


@dataclass(frozen=True)
class Law:
    name: str
    cost: str
    """What is measured, with its unit."""
    size: str
    """What it is measured against."""
    sizes: tuple[float, ...]
    expected: float
    """The exponent it should have: 1 is linear, 0 does not grow."""
    measure: Callable[[float], float]

    def panel(self, points: Sequence[Sequence[float]]) -> Panel:
        middles = [median(values) for values in points]
        return Panel(self.name, self.sizes, {f"{self.cost} against {self.size}": middles}, self.expected)

    def exponent(self, points: Sequence[Sequence[float]]) -> Interval:
        """Fitted for each repetition apart."""
        return slope(self.sizes, [torch.tensor(values, dtype=torch.float64) for values in points])


class Notes:
    """What has been measured, in a file of lines: a run that was stopped goes on."""

    def __init__(self, path: Path) -> None:
        self.path, self._known = path, dict[tuple[str, float], list[float]]()
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            entry: dict[str, Any] = json.loads(line)
            self._known.setdefault((entry["law"], entry["size"]), []).append(entry["value"])

    def points(self, law: Law, repeats: int) -> list[list[float]]:
        """`repeats` values at each size, measured where they are missing, taking turns."""
        for turn in range(repeats):
            for size in law.sizes:
                known = self._known.setdefault((law.name, size), [])
                if len(known) <= turn:
                    known.append(law.measure(size))
                    with self.path.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({"law": law.name, "size": size, "value": known[-1]}) + "\n")
        return [self._known[law.name, size][:repeats] for size in law.sizes]
