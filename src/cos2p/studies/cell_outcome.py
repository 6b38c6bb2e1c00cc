"""What became of a cell, and how a runner of cells looks from outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cos2p.studies.grid import Cell


@dataclass(frozen=True)
class CellOutcome:
    """The figures of a cell's `result.json`, or why there are none."""

    cell: str
    result: Mapping[str, Any] | None = None
    failure: str = ""
    exit_code: int = 0
    """Of the failure, as `cos2p run` would end with it."""
    kept: bool = False
    """It was there already, from an earlier start of the study."""
    seconds: float = 0.0
    """Wall seconds it took just now."""

    @property
    def ok(self) -> bool:
        return self.result is not None


CellOutcomes = Mapping[str, CellOutcome]
"""By the cell's name; cells that have not run yet are missing."""


class Execute(Protocol):
    """Runs cells. Each outcome is told at once to `after`, with all outcomes so far."""

    def __call__(
        self, cells: Sequence[Cell], after: Callable[[CellOutcomes], None] | None = None, later: int = 0
    ) -> CellOutcomes:
        """`later` is how many further cells the caller will ask for, for the estimate of the time."""
