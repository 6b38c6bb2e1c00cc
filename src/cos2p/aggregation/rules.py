"""How a run goes: the coordinator's settings as one validated value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from cos2p.aggregation.triggers import Trigger
from cos2p.errors import ConfigError

Redispatch = Literal["at-once", "at-aggregation"]


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

    task_timeout: float | None = None
    """Seconds after which a client is not waited for any more. Several times the slowest device's task; its
    update is still merged should it come later. None trusts every client to answer or be reported as gone."""

    max_staleness: int | None = None
    """Updates older than this many versions are dropped. None merges them all."""

    max_failures: int = 5
    """Tasks in a row that may fail or be refused before their client is benched; after as many that came to nothing
    for any reason, restarts included, a client is no longer waited for."""

    def __post_init__(self) -> None:
        if self.redispatch not in get_args(Redispatch):
            raise ConfigError(f"redispatch is {self.redispatch!r}; it is one of {', '.join(get_args(Redispatch))}")
        if self.rounds is None and self.max_updates is None:
            raise ConfigError("a run needs an end: set rounds, max_updates or both")
        for name, least in (("rounds", 1), ("max_updates", 1), ("max_staleness", 0), ("max_failures", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} is {value}; it is at least {least}")
        if self.task_timeout is not None and not (self.task_timeout > 0 and math.isfinite(self.task_timeout)):
            raise ConfigError(f"task_timeout is {self.task_timeout}; it is a number of seconds above 0, or None")

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Rules:
        return cls(**{**state, "trigger": Trigger(**state["trigger"])})
