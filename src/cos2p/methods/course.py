"""All that a member would be given in the course of a run, and the bytes of the largest task: what a budget must hold.

A plain submodel's size follows from its rate. That of a task does not: blocks around a window may stay, devices may
have to tell of their data first, factors may take a window's place. So the method itself is asked, turn by turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cos2p.errors import BudgetError
from cos2p.messages import Update
from cos2p.methods.base import Assignment, Call, Member, Method
from cos2p.methods.fitting import needed_bytes, order_of
from cos2p.models.layout import Weights
from cos2p.training.statistics import StatisticsTrainer


def turns(method: Method) -> range:
    """Of a window that moves, every place; a schedule of so many rounds is a whole run."""
    return range(max(3, method.context.config.depth) + 1)


def tasks_at(method: Method, member: Member, turn: int, weights: Weights) -> Iterator[Assignment]:
    """What the member would be given at this turn; where it first has to tell of its data, that and what follows; what
    it tells at the end comes before all others, so that the last task is one that trains.

    Without `weights` the tasks are of the right size, and what they name may be anything.
    """
    call = Call(member, turn, turn, turn, weights)
    if method.gathers_last:
        yield method.assign(replace(call, final=True))
    task = method.assign(call)
    yield task
    if task.trainer is StatisticsTrainer:
        order = order_of(method, member, task)
        method.accepted(order, Update(member.name, "", 0, order.spec, {}, member.samples))
        yield method.assign(call)


def largest_at(method: Method, member: Member, turn: int, weights: Weights) -> int:
    """Bytes of the largest of them. BudgetError if the method has none for the member."""
    return max(needed_bytes(method, member, task) for task in tasks_at(method, member, turn, weights))


def fits(method: Method, member: Member) -> bool:
    """Whether the member has the memory for all that it would be given. The method is used up by the question."""
    try:
        return all(largest_at(method, member, turn, {}) <= member.device.memory for turn in turns(method))
    except BudgetError:
        return False
