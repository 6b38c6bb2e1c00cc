"""All that a device would be given in the course of a run, the largest of it, and the rates with which it fits.

A plain submodel's size follows from its rate. That of a task does not: blocks around a window may stay, devices may
have to report statistics first, factors may take a window's place. So the method itself is asked, turn by turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import replace

from cos2p.errors import BudgetError
from cos2p.memory.fit import needed_bytes
from cos2p.memory.rates import cautious_workload, rate_limit
from cos2p.memory.tasks import Assignment, Call, Member, Planned, RunContext, make_order
from cos2p.messages import Update
from cos2p.models.layout import Weights
from cos2p.submodel.rates import LADDER
from cos2p.training.embeddings import held_tables
from cos2p.training.statistics import StatisticsTrainer

SMALLER = 0.75
"""What a task may take of what the one before it, which ran out of memory, was thought to take."""


def turns(method: Planned) -> range:
    """Of a window that moves, every place; a schedule of so many rounds is a whole run."""
    return range(max(3, method.context.config.depth) + 1)


def tasks_at(method: Planned, member: Member, turn: int, weights: Weights) -> Iterator[Assignment]:
    """What the member would be given at this turn; where it first has to report statistics, that and what follows; what
    it reports at the end comes before all others, so that the last task is one that trains.

    Without `weights` the tasks are of the right size, and what they name may be anything.
    """
    call = Call(member, turn, turn, turn, weights)
    if method.statistics_last:
        yield method.assign(replace(call, final=True))
    task = method.assign(call)
    yield task
    if task.trainer is StatisticsTrainer:
        order = make_order(method, member, task)
        method.accepted(order, Update(member.name, "", 0, order.spec, {}, member.samples))
        yield method.assign(call)


def largest_at(method: Planned, member: Member, turn: int, weights: Weights) -> int:
    """Bytes of the largest of them. BudgetError if the method has none for the member."""
    return max(needed_bytes(method, member, task) for task in tasks_at(method, member, turn, weights))


def fits(method: Planned, member: Member) -> bool:
    """Whether the member has the memory for all that it would be given. The method is used up by the question."""
    try:
        return all(largest_at(method, member, turn, {}) <= member.device.memory for turn in turns(method))
    except BudgetError:
        return False


# ---------------------------------------------------------------- rates that the recipe does not set


def sized_by_rate(method: Planned) -> bool:
    """Whether a device's rate says all about the bytes of its tasks, so that the method need not be asked."""
    return method.sized_by_rate or method.by_memory or method.over_budget


def largest_fitting(method: Planned, member: Member) -> float | None:
    """The member's rate, or the largest of the ladder below it with which all of its tasks fit; None if none does."""
    rates = (member.rate, *(rate for rate in LADDER if rate < member.rate))
    return next((rate for rate in rates if _fits(method, replace(member, rate=rate))), None)


def _fits(method: Planned, member: Member) -> bool:
    return fits(method.for_members(replace(method.context, members={member.name: member})), member)


def ledger_limit(context: RunContext, member: Member) -> float:
    """The largest rate by the ledger of plain submodels; 0 if none fits."""
    load = cautious_workload(context.training, member.batch, member.samples)
    tables = held_tables(context.config, context.training.embeddings, member.rows)
    return rate_limit(context.config, member.device.memory, load, tables)


def fitting_rate(method: Planned, member: Member) -> float | None:
    """The largest rate with which all of the member's tasks fit; None, or 0, if there is none."""
    return ledger_limit(method.context, member) if method.sized_by_rate else largest_fitting(method, member)


def with_fitting_rates(method: Planned, chosen: Collection[str]) -> RunContext:
    """The method's context with lower rates for those of `chosen` whose tasks would not fit their memory.

    `chosen` are the devices whose rates the recipe does not set. A device for which not even the lowest rate fits keeps
    its own: its first task is refused, and the error says what is missing.
    """
    context = method.context
    if not chosen or not context.enforce_memory or sized_by_rate(method):
        return context
    tiers: dict[float, list[Member]] = defaultdict(list)
    for name in chosen:
        tiers[context.members[name].rate].append(context.members[name])
    members = dict(context.members)
    for rate, tier in tiers.items():
        if not _fits(method, _hardest(tier)):  # a thousand devices are not asked one by one if all fit
            found = {member.name: largest_fitting(method, member) for member in tier}
            members |= {name: replace(members[name], rate=lower or rate) for name, lower in found.items()}
    return replace(context, members=members)


def _hardest(tier: list[Member]) -> Member:
    """One with the least memory and the most of everything else: if its tasks fit, so do all the others'."""
    rows = max((member.rows for member in tier), key=lambda rows: int(rows or "0", 16).bit_count())
    return replace(
        min(tier, key=lambda member: member.device.memory),
        batch=max(member.batch for member in tier),
        samples=max(member.samples for member in tier),
        test_samples=max(member.test_samples for member in tier),
        rows=rows,
    )


def lowered(context: RunContext, member: Member, needed: int) -> Member:
    """After a task that was to take `needed` bytes ran out of memory: what the next one is cut to.

    A lower rate; and for methods that go by memory whatever the rate is, fewer bytes.
    """
    return replace(member, rate=_lowered_rate(context, member), largest=int(SMALLER * needed))


def _lowered_rate(context: RunContext, member: Member) -> float:
    """The next rate of the ladder that the ledger says fits.

    Where the ledger thought that even the present one would, or that none does, the next step down.
    """
    limit = ledger_limit(context, member)
    below = [rate for rate in LADDER if rate < member.rate]
    return next((rate for rate in below if rate <= limit), below[0] if below and limit > 0 else LADDER[-1])
