"""How a run goes: the coordinator's settings as one validated value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from cos2p.aggregation.triggers import Trigger
from cos2p.errors import ConfigError

Redispatch = Literal["at-once", "at-aggregation"]

Choice = Literal["uniform", "coverage", "speed"]
"""Who is chosen where not all take part: anyone, who holds what was trained least, or who is quickest."""

# 0.07 · 100 is 7.000000000000001 in floating point; without the guard its ceiling would be 8.
_GUARD = 1e-9


def share_of(wanted: float, here: int) -> int:
    """`clients_per_round` as a number: it counts clients, or below 1 it is a share of those here.

    >>> share_of(5, 8), share_of(0.07, 100), share_of(0.01, 8)
    (5, 7, 1)
    """
    return int(wanted) if wanted >= 1 else max(1, math.ceil(wanted * here - _GUARD))


@dataclass(frozen=True)
class Rules:
    """How a run goes. At least one of `rounds` and `max_updates` says where it ends."""

    trigger: Trigger

    redispatch: Redispatch
    """When a client that reported gets its next task. `at-aggregation`: with the next version, as in the paper;
    the only sensible value for a synchronous run. `at-once`: no device idles, staleness grows."""

    rounds: int | None = None
    """Aggregations until the end; the first of this and `max_updates` ends the run."""

    max_updates: int | None = None
    """Merged updates until the end; gives methods with different triggers the same amount of training."""

    finale: int = 0
    """How many clients are to answer once more when training is over, in a last round that waits for all of them. So
    many of `max_updates` are theirs: no more tasks are given out before it than it leaves. 0: there is none."""

    task_timeout: float | None = None
    """Seconds after which a client is not waited for any more. Several times the slowest device's task; its
    update is still merged should it come later. None trusts every client to answer or be reported as gone."""

    max_staleness: int | None = None
    """Updates older than this many versions are dropped. None merges them all."""

    max_failures: int = 5
    """Tasks in a row that may fail or be refused before their client is benched; after as many that came to nothing
    for any reason, restarts included, a client is no longer waited for."""

    clients_per_round: float | None = None
    """How many clients take part in a round: a whole number counts them, a number below 1 is a share of those here.
    None lets everybody take part. With `at-once` it is how many are at work at any time."""

    max_in_flight: int | None = None
    """How many tasks may be out at once. None sets no limit."""

    choose: Choice = "uniform"

    seed: int = 0
    """Of the draws among those who could take part."""

    def __post_init__(self) -> None:
        if self.choose not in get_args(Choice):
            raise ConfigError(f"choose is {self.choose!r}; it is one of {', '.join(get_args(Choice))}")
        per_round = self.clients_per_round
        if per_round is not None and not (0 < per_round < 1 or (per_round >= 1 and per_round == int(per_round))):
            raise ConfigError(f"clients_per_round is {per_round}; it is a whole number, or a share between 0 and 1")
        if self.redispatch not in get_args(Redispatch):
            raise ConfigError(f"redispatch is {self.redispatch!r}; it is one of {', '.join(get_args(Redispatch))}")
        if self.rounds is None and self.max_updates is None:
            raise ConfigError("a run needs an end: set rounds, max_updates or both")
        for name, least in (
            ("rounds", 1),
            ("max_updates", 1),
            ("max_staleness", 0),
            ("max_failures", 1),
            ("max_in_flight", 1),
            ("finale", 0),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} is {value}; it is at least {least}")
        if self.max_updates is not None and self.finale >= self.max_updates:
            raise ConfigError(f"the last round alone takes {self.finale} of {self.max_updates} updates; allow for more")
        if self.task_timeout is not None and not (self.task_timeout > 0 and math.isfinite(self.task_timeout)):
            raise ConfigError(f"task_timeout is {self.task_timeout}; it is a number of seconds above 0, or None")

    @property
    def before_finale(self) -> int | None:
        """Merged updates until the last round begins; None if rounds alone count."""
        return None if self.max_updates is None else self.max_updates - self.finale

    @property
    def limited(self) -> bool:
        """Whether some clients may have to wait although they could work."""
        return self.clients_per_round is not None or self.max_in_flight is not None

    def taking_part(self, here: int) -> float:
        """How many of the clients that are here may take part in a round."""
        return math.inf if self.clients_per_round is None else share_of(self.clients_per_round, here)

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Rules:
        return cls(**{**state, "trigger": Trigger(**state["trigger"])})
