"""Rates that nobody set: as the method's own tasks fit the device, where a rate alone does not say what they take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from cos2p.devices.rates import LADDER
from cos2p.methods import build_method
from cos2p.methods.base import Member, RunContext
from cos2p.methods.course import fits


def largest_fitting(method: Mapping[str, Any], context: RunContext, member: Member) -> float | None:
    """The member's rate, or the largest of the ladder below it with which all of its tasks fit; None if none does."""
    rates = (member.rate, *(rate for rate in LADDER if rate < member.rate))
    return next((rate for rate in rates if _fits(method, context, replace(member, rate=rate))), None)


def with_fitting_rates(method: Mapping[str, Any], context: RunContext, chosen: Collection[str]) -> RunContext:
    """The context with lower rates for those of `chosen`, whose rates nobody set, that would not have the memory.

    Where not even the lowest fits it stays as it is: the first task that is refused says what is missing.
    """
    if not chosen or not context.enforce_memory or asks_nothing(method, context):
        return context
    tiers: dict[float, list[Member]] = defaultdict(list)
    for name in chosen:
        tiers[context.members[name].rate].append(context.members[name])
    members = dict(context.members)
    for rate, tier in tiers.items():
        if not _fits(method, context, _hardest(tier)):  # a thousand devices are not asked one by one if all fit
            found = {member.name: largest_fitting(method, context, member) for member in tier}
            members |= {name: replace(members[name], rate=lower or rate) for name, lower in found.items()}
    return replace(context, members=members)


def asks_nothing(method: Mapping[str, Any], context: RunContext) -> bool:
    """Whether a device's rate says all about the bytes of its tasks, so that the method need not be asked."""
    made = build_method(method, context)
    return made.sized_by_rate or made.by_memory or made.over_budget


def _fits(method: Mapping[str, Any], context: RunContext, member: Member) -> bool:
    return fits(build_method(method, replace(context, members={member.name: member})), member)


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
