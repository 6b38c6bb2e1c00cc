"""When the server aggregates: after how many updates, and how long it then goes on listening.

One rule with two numbers covers the family (Algorithm 2 of the paper; the paper's section on μ and T_clk):

    semi-asynchronous    ⌈μN⌉ different clients, then T_clk seconds
    synchronous          μ = 1, T_clk = 0
    asynchronous         one update
    buffered             a fixed number of updates, a client may count twice (FedBuff)

A trigger is a value without state: the coordinator keeps the counts and asks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cos2p.errors import ConfigError


def ceil_share(share: float, count: int) -> int:
    """⌈share · count⌉, at least 1. 0.07 · 100 is 7.000000000000001 in floating point, and its ceiling would be 8.

    >>> ceil_share(0.07, 100), ceil_share(0.01, 8)
    (7, 1)
    """
    return max(1, math.ceil(share * count - 1e-9))


@dataclass(frozen=True)
class Trigger:
    """Exactly one of `mu` and `count` is set; build one with the constructors below.

    >>> Trigger.semi_asynchronous(mu=0.5, t_clk=60.0).threshold(clients=8)
    4
    """

    mu: float | None = None
    """Share of the clients that must have reported, in (0, 1]; the paper's value is 0.5."""

    count: int | None = None
    """Number of updates that must have arrived, at least 1."""

    t_clk: float = 0.0
    """Seconds the server goes on listening once the threshold is met; the paper's value is 60, 0 is none."""

    def __post_init__(self) -> None:
        if (self.mu is None) == (self.count is None):
            raise ConfigError(
                f"a trigger has either mu or count, got mu={self.mu} and count={self.count}; "
                "use semi_asynchronous(mu, t_clk) or buffered(count)"
            )

    @classmethod
    def semi_asynchronous(cls, mu: float, t_clk: float) -> Trigger:
        return cls(mu=mu, t_clk=t_clk)

    @classmethod
    def synchronous(cls) -> Trigger:
        return cls(mu=1.0)

    @classmethod
    def asynchronous(cls) -> Trigger:
        return cls(count=1)

    @classmethod
    def buffered(cls, count: int) -> Trigger:
        return cls(count=count)

    def threshold(self, clients: int) -> int:
        """How many must have come when `clients` take part: different clients under `mu`, else updates."""
        if self.count is not None:
            return self.count
        assert self.mu is not None, "one of the two is set, see __post_init__"
        return ceil_share(self.mu, clients)

    def met(self, *, updates: int, reporters: int, clients: int) -> bool:
        """`updates` have arrived from `reporters` different clients, and `clients` take part in the round."""
        arrived = updates if self.mu is None else reporters
        return arrived >= self.threshold(clients)
