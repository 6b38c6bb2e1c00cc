"""Whether a task fits its device's memory, by the ledger: how it is made to, and what is said if it cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cos2p.devices.rates import cautious_workload, rate_limit
from cos2p.errors import BudgetError
from cos2p.messages import Order
from cos2p.methods import Trainer
from cos2p.methods.base import Call, Member, Method, RunContext
from cos2p.methods.fitting import needed_bytes
from cos2p.methods.head_settings import trained_instead
from cos2p.runtime.rates import largest_fitting
from cos2p.training.embeddings import held_tables
from cos2p.training.settings import ways_to_save, with_savings
from cos2p.units import format_bytes


def saving_as_needed(order: Order, trainer: Trainer, memory: int, needed: Callable[[Order], int]) -> Order:
    """Where the recipe says `needed`: the first way to save in which the task fits, or the last one."""
    for savings in ways_to_save(trainer.local.savings, trainer.local.batch):
        settings = with_savings(trainer.settings, **savings)
        order = replace(order, settings=settings.model_dump(mode="json"))
        if needed(order) <= memory:
            break
    return order


def keeps_memory(method: Method) -> bool:
    """Whether tasks that do not fit a device's memory are refused."""
    context = method.context
    return context.enforce_memory and not (context.as_bound and method.over_budget)


def check_fit(method: Method, order: Order, needed: int) -> None:
    """A task that does not fit its device is not given out."""
    member = method.context.members[order.client]
    if keeps_memory(method) and needed > member.device.memory:
        raise BudgetError(
            f"{order.client}: its task needs {format_bytes(needed)}, the device has "
            f"{format_bytes(member.device.memory)}; {advice(method, member)}"
        )


def check_last_fit(method: Method, call: Call) -> None:
    """With a client's first task: whether that of the last round will fit. A run shall not find out at its end."""
    member = call.member
    if call.attempt > 0 or not method.gathers_last or method.over_budget or not keeps_memory(method):
        return
    needed = needed_bytes(method, member, method.assign(replace(call, final=True)))
    if needed > member.device.memory:
        raise BudgetError(
            f"{member.name}: to tell sums of its features at the end needs {format_bytes(needed)}, the device has "
            f"{format_bytes(member.device.memory)}; {trained_instead(method.settings)}"
        )


def advice(method: Method, member: Member) -> str:
    """What to change so that a task fits."""
    context, savings = method.context, method.context.training.savings
    less = "give it a smaller batch"
    if not savings.micro_batch:
        less += ', or parts of one: training.savings.micro_batch = "needed"'
    if savings.recompute == "no":
        less += '; training.savings.recompute = "needed" takes fewer bytes and more time'
    if method.over_budget:
        return (
            f"{method.title} cannot train less of the model: {less}; or, as a bound to compare with, let it train over "
            "the memory (fleet.enforce_memory = false), or run it in a study (cos2p compare)"
        )
    rate = _fitting_rate(context, method, member)
    if not rate:
        return f"no submodel of this model fits it: {less}"
    if rate >= member.rate:  # a plain submodel of its rate would fit; what the method adds to it does not
        return f"give it a lower rate (now {member.rate:g}), or {less}"
    return f"a rate of {rate:.4f} fits in any case (now {member.rate:g}), or {less}"


def _fitting_rate(context: RunContext, method: Method, member: Member) -> float | None:
    """The largest with which all of the member's tasks fit; None, or 0, if there is none."""
    if not method.sized_by_rate:
        return largest_fitting({"name": method.name, **method.settings.model_dump(mode="json")}, context, member)
    training = context.training
    load = cautious_workload(training, member.batch, member.samples)
    tables = held_tables(context.config, training.embeddings, member.rows)
    return rate_limit(context.config, member.device.memory, load, tables)
