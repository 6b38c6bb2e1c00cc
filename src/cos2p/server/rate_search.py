"""`training.lr = "auto"` on the server: what devices found becomes one learning rate for the run.

Each device tries the ladder once, in its first training task, and trains that task at the rate that it finds. Until
enough have reported, one that has is given the middle of what is known. Then the rate is settled.

The middle is cautious: of each rate's losses the median over the devices, the worse of two in the middle. So fewer than
half of the devices, whatever they report, cannot raise the rate to one that does harm to most others, and no rate is
ever outside the ladder.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from cos2p.messages import Order
from cos2p.tracking.event_kinds import Rated
from cos2p.training.rate_trial import FALLBACK, LADDERS, best_place, read_report
from cos2p.training.settings import TrainingSettings

QUORUM = 0.5
"""Share of the devices that take part which settles the rate."""


class RateSearch:
    def __init__(self, training: TrainingSettings) -> None:
        self.ladder: Sequence[float] = LADDERS[training.optimizer] if training.lr == "auto" else ()
        """What is tried; empty where the recipe sets the rate."""
        self.found: dict[str, list[float]] = {}
        """By device that did its trial: each rate's loss over the first one; empty if it could not try."""
        self.settled: float | None = None if training.lr == "auto" else training.lr

    def rate(self) -> float:
        """The best that is known now."""
        return self.settled or self.ladder[self._place()]

    def to_try(self, client: str) -> Sequence[float]:
        """What the device's next training task tries first."""
        return () if self.settled or client in self.found else self.ladder

    def note(self, order: Order, report: Mapping[str, Any]) -> None:
        """A task was answered."""
        if order.rates and self.settled is None:
            self.found[order.client] = read_report(order, report)

    def settle(self, devices: int) -> list[Rated]:
        """A round closed: if enough of the devices that take part have tried, the rate is found."""
        if self.settled is not None or len(self.found) < max(1, math.ceil(QUORUM * devices)):
            return []
        self.settled = self.rate()
        return [Rated(lr=self.settled, tried=list(self.ladder), losses=self._middle(), devices=len(self._tried()))]

    def _tried(self) -> list[list[float]]:
        return [ratios for ratios in self.found.values() if ratios]

    def _middle(self) -> list[float]:
        return [round(statistics.median_high(ratios), 4) for ratios in zip(*self._tried(), strict=True)]

    def _place(self) -> int:
        return best_place(self._middle()) if self._tried() else FALLBACK

    # ------------------------------------------------------------ checkpoint

    def state(self) -> dict[str, Any]:
        return {"found": self.found, "settled": self.settled}

    def load_state(self, values: Mapping[str, Any]) -> None:
        self.found = {client: list(ratios) for client, ratios in values["found"].items()}
        self.settled = values["settled"]
