"""A task that does not fit its device is refused, with what to change."""

from __future__ import annotations

from dataclasses import replace

from cos2p.errors import BudgetError
from cos2p.memory.fit import needed_bytes
from cos2p.memory.task_plan import fitting_rate
from cos2p.memory.tasks import Call, Member, Planned
from cos2p.messages import Order
from cos2p.units import format_bytes


def keeps_memory(method: Planned) -> bool:
    """Whether tasks that do not fit a device's memory are refused."""
    context = method.context
    return context.enforce_memory and not (context.as_bound and method.over_budget)


def check_fit(method: Planned, order: Order, needed: int) -> None:
    """A task that does not fit its device is not given out."""
    member = method.context.members[order.client]
    if keeps_memory(method) and needed > member.device.memory:
        raise BudgetError(
            f"{order.client}: its task needs {format_bytes(needed)}, the device has "
            f"{format_bytes(member.device.memory)}; {advice(method, member)}"
        )


def check_last_fit(method: Planned, call: Call, otherwise: str) -> None:
    """With a client's first task: whether that of the last round will fit. A run shall not find out at its end.

    `otherwise`: what to set where it does not.
    """
    member = call.member
    if call.attempt > 0 or not method.statistics_last or method.over_budget or not keeps_memory(method):
        return
    needed = needed_bytes(method, member, method.assign(replace(call, final=True)))
    if needed > member.device.memory:
        raise BudgetError(
            f"{member.name}: to report sums of its features at the end needs {format_bytes(needed)}, the device has "
            f"{format_bytes(member.device.memory)}; {otherwise}"
        )


def advice(method: Planned, member: Member) -> str:
    """What to change so that a task fits."""
    memory_optimizations = method.context.training.memory_optimizations
    less = "give it a smaller batch"
    if not memory_optimizations.micro_batch:
        less += ', or parts of one: training.memory_optimizations.micro_batch = "needed"'
    if memory_optimizations.recompute == "no":
        less += '; training.memory_optimizations.recompute = "needed" takes fewer bytes and more time'
    if method.over_budget:
        return (
            f"{method.title} cannot train less of the model: {less}; or, as a bound to compare with, let it train over "
            "the memory (fleet.enforce_memory = false), or run it in a study (cos2p compare)"
        )
    rate = fitting_rate(method, member)
    if not rate:
        return f"no submodel of this model fits it: {less}"
    if rate >= member.rate:  # a plain submodel of its rate would fit; what the method adds to it does not
        return f"give it a lower rate (now {member.rate:g}), or {less}"
    return f"a rate of {rate:.4f} fits in any case (now {member.rate:g}), or {less}"
