"""Bytes of a task by its contract's ledger, the first of several that fits a device, and how a task is made to fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Literal

from cos2p.errors import BudgetError
from cos2p.memory.tasks import Assignment, Member, Planned, make_order
from cos2p.messages import Order
from cos2p.training.contract import TaskContract
from cos2p.training.settings import ways_to_save, with_optimizations
from cos2p.units import format_bytes

Store = Literal["memory", "disk"]
STORES: tuple[Store, ...] = ("memory", "disk")
"""Where a device keeps the features of what is frozen, the quicker first."""


def needed_bytes(method: Planned, member: Member, assignment: Assignment) -> int:
    """Bytes of the worst moment of a method's task, by the ledger; nothing is allocated."""
    contract = assignment.trainer.contract_of(method.context.config, make_order(method, member, assignment))
    return contract.memory(member.samples).total


def room(method: Planned, member: Member) -> float:
    """Bytes that a task of the member may take: those it has, or fewer since a task ran out of them."""
    limits = [member.largest] if member.largest else []
    if method.context.enforce_memory:
        limits.append(member.device.memory)
    return min(limits, default=math.inf)


def first_that_fits(method: Planned, member: Member, options: Iterable[Assignment], smallest: str) -> Assignment:
    """The first of the options, largest first, that the member has room for; BudgetError if none is.

    After a task ran out of memory there may be none any more: then the smallest is tried all the same.
    """
    needed, option = 0, None
    for option in options:
        needed = needed_bytes(method, member, option)
        if needed <= room(method, member):
            return option
    if option is not None and needed <= room(method, replace(member, largest=0)):
        return option
    raise BudgetError(
        f"even {smallest} needs {format_bytes(needed)}, the device has {format_bytes(member.device.memory)}"
    )


def largest_group(
    method: Planned, member: Member, most: int, tasks: Callable[[int, Store], Iterable[Assignment]]
) -> tuple[int, Store]:
    """The most blocks, from `most` down, with which the member has room for all its tasks; 0 if there are none.

    `tasks(blocks, store)` are those of all places. Features are in memory if that fits, else on disk.
    """
    for blocks in range(most, 0, -1):
        for store in STORES:
            needed = (needed_bytes(method, member, task) for task in tasks(blocks, store))
            if all(size <= room(method, member) for size in needed):
                return blocks, store
    return 0, STORES[0]


def optimized_as_needed(order: Order, contract: TaskContract, memory: int, needed: Callable[[Order], int]) -> Order:
    """Where the recipe says `needed`: the first way to save in which the task fits, or the last one."""
    for memory_optimizations in ways_to_save(contract.local.memory_optimizations, contract.local.batch):
        settings = with_optimizations(contract.settings, **memory_optimizations)
        order = replace(order, settings=settings.model_dump(mode="json"))
        if needed(order) <= memory:
            break
    return order
