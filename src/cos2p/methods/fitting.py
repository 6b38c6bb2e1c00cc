"""The largest task that fits a device: for methods whose devices take a rank or a group by their memory, not a rate."""

from __future__ import annotations

from collections.abc import Iterable

from cos2p.errors import BudgetError
from cos2p.messages import Order
from cos2p.methods.base import Assignment, Member, RunContext
from cos2p.units import format_bytes


def needed_bytes(context: RunContext, member: Member, assignment: Assignment) -> int:
    """Bytes of the task's worst moment, by the ledger; nothing is allocated."""
    order = Order(
        client=member.name,
        task="",
        version=0,
        cycle=0,
        attempt=0,
        seed=context.seed,
        trainer=assignment.trainer.name,
        settings=assignment.settings.model_dump(mode="json"),
        lr=context.training.lr,
        spec=assignment.spec,
        quotas=assignment.quotas,
        prefix_precision=assignment.prefix_precision,
    )
    return assignment.trainer(context.config, order).memory(member.samples).total


def first_that_fits(context: RunContext, member: Member, options: Iterable[Assignment], smallest: str) -> Assignment:
    """The first of the options, largest first, that the member's memory can hold; BudgetError if none is.

    Where memory is not enforced, the first.
    """
    needed = 0
    for option in options:
        needed = needed_bytes(context, member, option)
        if needed <= member.device.memory or not context.enforce_memory:
            return option
    raise BudgetError(
        f"even {smallest} needs {format_bytes(needed)}, the device has {format_bytes(member.device.memory)}"
    )
