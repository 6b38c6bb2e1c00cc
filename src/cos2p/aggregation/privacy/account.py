"""The price of a run for each device in ε, from what really happened.

Every release is a Gaussian mechanism. In a `central` run a device with j updates in one round's sum moves that sum by
at most jC, against noise σC: it costs as much as j² single updates. In a `local` run every update is released by
itself. Gaussian mechanisms compose to a Gaussian mechanism: n of them with multiplier σ are one with σ/√n, and its
ε(δ) is the exact one of the library `dp-accounting`. No amplification by sampling is claimed: who takes part is not
drawn at random and not hidden.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

from cos2p.errors import MissingExtra


def _library() -> Any:
    try:
        import dp_accounting
    except ImportError:
        raise MissingExtra(
            "privacy is accounted for by the library dp-accounting; install it with: pip install 'cos2p[privacy]'"
        ) from None
    return dp_accounting


@cache
def epsilon_of(updates: int, multiplier: float, delta: float) -> float:
    """ε of so many updates of one device. Infinite without noise, 0 without updates."""
    if updates == 0:
        return 0.0
    return math.inf if multiplier == 0 else epsilon_of_sum(updates / multiplier**2, delta)


def epsilon_of_sum(precision: float, delta: float) -> float:
    """ε of updates with noise of several multipliers: of them 1/σ² is added up."""
    if precision == 0:
        return 0.0
    if precision > 1e4:  # σ < 0.01: the exact figure is 5,000 and more, and no search for it is worth the time
        return math.inf
    return float(_library().get_epsilon_gaussian(1 / math.sqrt(precision), delta))


def multiplier_for(epsilon: float, delta: float, updates: int) -> float:
    """The smallest σ with which so many updates of one device cost at most ε."""
    found = float(_library().get_sigma_gaussian(epsilon, delta)) * math.sqrt(updates)
    return found if epsilon_of(updates, found, delta) <= epsilon else found * (1 + 1e-9)


class Account:
    """How often each device took part. Counts alone, so it can be written down and go on."""

    def __init__(self, multiplier: float, delta: float, budget: float | None, *, by_round: bool) -> None:
        """`by_round`: updates of one round are released as one sum (`central`)."""
        self.multiplier, self.delta, self.budget, self.by_round = multiplier, delta, budget, by_round
        self.cost: Counter[str] = Counter()
        """In single updates."""
        self.updates: Counter[str] = Counter()
        self._open: Counter[str] = Counter()
        """Updates in the sum of the present round."""

    def took_part(self, client: str) -> None:
        self.updates[client] += 1
        self.cost[client] += self._next_cost(client)
        if self.by_round:
            self._open[client] += 1

    def at_least(self, updates: Mapping[str, int]) -> None:
        """So many updates of each device were released for sure, some of them after the last checkpoint."""
        for client, count in updates.items():
            missing = max(0, count - self.updates[client])
            self.updates[client] += missing
            self.cost[client] += missing

    def close_round(self) -> None:
        self._open.clear()

    def _next_cost(self, client: str) -> int:
        """(j+1)² − j²."""
        return 2 * self._open[client] + 1

    def epsilon(self, client: str) -> float:
        return epsilon_of(self.cost[client], self.multiplier, self.delta)

    def worst(self) -> float:
        """The run's ε: that of the device that took part most."""
        return max((self.epsilon(client) for client in self.cost), default=0.0)

    def allows(self, client: str) -> bool:
        """Whether one more update, were it to come in this very round, is within the budget."""
        if self.budget is None:
            return True
        return epsilon_of(self.cost[client] + self._next_cost(client), self.multiplier, self.delta) <= self.budget

    def to_dict(self) -> dict[str, dict[str, int]]:
        return {"cost": dict(self.cost), "updates": dict(self.updates), "open": dict(self._open)}

    def load_dict(self, values: Mapping[str, Mapping[str, int]]) -> None:
        self.cost, self.updates = Counter(values["cost"]), Counter(values["updates"])
        self._open = Counter(values["open"])
