"""How a run goes: the coordinator's rules for a round, from what the schedule and the method say.

The schedule's fields are validated with the recipe (`ScheduleSettings`) and not again here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cos2p.aggregation.settings import Redispatch, share_of
from cos2p.aggregation.triggers import Trigger
from cos2p.errors import ConfigError
from cos2p.methods.base import Method, RunContext


@dataclass(frozen=True)
class Rules:
    """How a run goes; `ScheduleSettings` explains the fields that have its names. At least one of `rounds` and
    `max_updates` says where it ends."""

    trigger: Trigger
    redispatch: Redispatch
    rounds: int | None = None
    """Aggregations until the end; the first of this and `max_updates` ends the run."""
    max_updates: int | None = None
    """Merged updates until the end."""
    final_updates: int = 0
    """How many clients are to answer once more when training is over, in a last round that waits for all of them. So
    many of `max_updates` are theirs: no more tasks are given out before it than it leaves. 0: there is none."""
    task_timeout: float | None = None
    """Seconds after which a client is not waited for any more; its update is still merged should it come later."""
    max_failures: int = 5
    """Tasks in a row that may fail or be refused before their client is excluded; after as many that came to nothing
    for any reason, restarts included, a client is no longer waited for."""
    clients_per_round: float | None = None
    seed: int = 0
    """Seed of the draws among those who could take part."""

    def __post_init__(self) -> None:
        if self.max_updates is not None and self.final_updates >= self.max_updates:
            raise ConfigError(
                f"the last round alone takes {self.final_updates} of {self.max_updates} updates; allow for more"
            )

    @property
    def before_final_round(self) -> int | None:
        """Merged updates until the last round begins; None if rounds alone count."""
        return None if self.max_updates is None else self.max_updates - self.final_updates

    @property
    def limited(self) -> bool:
        """Whether some clients may have to wait although they could work."""
        return self.clients_per_round is not None

    def taking_part(self, here: int) -> float:
        return math.inf if self.clients_per_round is None else share_of(self.clients_per_round, here)

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Rules:
        fields = {name: value for name, value in state.items() if name != "max_staleness"}  # of checkpoints up to 0.1.0
        return cls(**{**fields, "trigger": Trigger(**state["trigger"])})


def rules_of(context: RunContext, method: Method, version: int = 0, in_final_round: bool = False) -> Rules:
    """For the present members, in the round that starts from `version`."""
    schedule, (trigger, redispatch) = context.schedule, method.rules()
    if version == 0 and method.statistics_first:
        redispatch = "at-aggregation"
        if trigger == Trigger.asynchronous():  # the report of one device is no beginning
            trigger = Trigger.semi_asynchronous(schedule.mu, schedule.t_clk)
    once = method.one_round and schedule.clients_per_round is None
    settles = method.statistics_last and schedule.rounds is not None and version + 2 >= schedule.rounds
    if settles or in_final_round or once:
        trigger, redispatch = Trigger.synchronous(), "at-aggregation"
    return Rules(
        trigger=trigger,
        redispatch=redispatch,
        rounds=1 if once else schedule.rounds,
        max_updates=None if once else schedule.updates,
        final_updates=_final_updates(context, method),
        task_timeout=schedule.task_timeout,
        clients_per_round=schedule.clients_per_round,
        seed=context.seed,
    )


def _final_updates(context: RunContext, method: Method) -> int:
    """How many clients answer in the last round, if there is one of its own; of few updates they leave one."""
    if not method.statistics_last:
        return 0
    schedule = context.schedule
    statistics_updates = max(1, schedule.taking_part(len(context.members)))
    return statistics_updates if schedule.updates is None else min(statistics_updates, schedule.updates - 1)
