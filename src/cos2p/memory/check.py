"""A task that does not fit its device is refused, with what to change."""

from __future__ import annotations

from dataclasses import replace

from cos2p.errors import BudgetError
from cos2p.memory.planning import choose
from cos2p.memory.tasks import Call, Member, Planned
from cos2p.memory.ways import least_bytes
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
    needed = least_bytes(method, member, method.assign(replace(call, final=True)))
    if needed > member.device.memory:
        raise BudgetError(
            f"{member.name}: statistics of its features at the end need {format_bytes(needed)}, the device has "
            f"{format_bytes(member.device.memory)}; {otherwise}"
        )


def advice(method: Planned, member: Member) -> str:
    """The cheapest change with which a task fits."""
    memory_optimizations = method.context.training.memory_optimizations
    shut = [name for name, value in memory_optimizations if value in (False, "no", 0) and name != "bf16"]
    if shut:
        opened = ", ".join(f"training.memory_optimizations.{name}" for name in shut)
        less = f'leave {opened} "auto"'
    else:
        less = "give it more memory"
    if method.over_budget:
        return (
            f"{method.title} cannot train less of the model: {less}; or, as a bound to compare with, let it train over "
            "the memory (fleet.enforce_memory = false), or run it in a study (cos2p compare)"
        )
    try:
        part = choose(method, replace(member, auto=True, part=None))
    except BudgetError as error:
        return f"{error}: {less}, or a smaller model"
    return f"{part.words()} fits: leave its rate out (now {member.rate:g})"
