"""How a run goes, from what the method and the schedule say: the coordinator's rules for the round that begins."""

from __future__ import annotations

from cos2p.aggregation.rules import Rules
from cos2p.aggregation.triggers import Trigger
from cos2p.methods.base import Method, RunContext


def rules_of(context: RunContext, method: Method, version: int = 0, in_finale: bool = False) -> Rules:
    """For the present members, in the round that starts from `version`."""
    schedule, (trigger, redispatch) = context.schedule, method.rules()
    if version == 0 and method.gathers_first:
        redispatch = "at-aggregation"
        if trigger == Trigger.asynchronous():  # what one device tells is no beginning
            trigger = Trigger.semi_asynchronous(schedule.mu, schedule.t_clk)
    settles = method.gathers_last and schedule.rounds is not None and version + 2 >= schedule.rounds
    if settles or in_finale:
        trigger, redispatch = Trigger.synchronous(), "at-aggregation"
    return Rules(
        trigger=trigger,
        redispatch=redispatch,
        rounds=schedule.rounds,
        max_updates=schedule.updates,
        finale=_telling_last(context, method),
        task_timeout=schedule.task_timeout,
        max_staleness=schedule.max_staleness,
        max_failures=schedule.max_failures,
        clients_per_round=schedule.clients_per_round,
        max_in_flight=schedule.max_in_flight,
        choose=schedule.choose,
        seed=context.seed,
    )


def _telling_last(context: RunContext, method: Method) -> int:
    """How many clients answer in the last round, if there is one of its own; of few updates they leave one."""
    if not method.gathers_last:
        return 0
    schedule = context.schedule
    telling = max(1, schedule.taking_part(len(context.members)))
    return telling if schedule.updates is None else min(telling, schedule.updates - 1)
