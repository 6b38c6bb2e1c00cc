"""A device ran out of memory all the same: what its next task is cut to, on a real fleet and on a simulated GPU."""

from __future__ import annotations

from dataclasses import replace

from cos2p.devices.rates import LADDER, cautious_workload, rate_limit
from cos2p.methods.base import Member
from cos2p.models.config import ModelConfig
from cos2p.recipe import Recipe
from cos2p.runtime.server import Server
from cos2p.tracking.event_kinds import Lowered
from cos2p.training.embeddings import held_tables

SMALLER = 0.75
"""What a task may take of what the one before it, which ran out of memory, was thought to take."""


def lower(server: Server, recipe: Recipe, client: str, task: str) -> Lowered:
    """The task did not fit: the client's next one is smaller, as the ledger says."""
    member, order = server.context.members[client], server.orders.get(task)
    needed = 0 if order is None else server.needed_memory(order)  # it may have been given up meanwhile
    smaller = lowered(server.context.config, member, recipe, needed)
    server.welcome(smaller)
    return Lowered(client=client, was=member.rate, rate=smaller.rate, memory=member.device.memory)


def lowered(config: ModelConfig, member: Member, recipe: Recipe, needed: int) -> Member:
    """After a task that was to take `needed` bytes ran out of memory: what the next one is cut to.

    A lower rate; and for methods that go by memory whatever the rate is, fewer bytes.
    """
    return replace(member, rate=_lowered_rate(config, member, recipe), largest=int(SMALLER * needed))


def _lowered_rate(config: ModelConfig, member: Member, recipe: Recipe) -> float:
    """The next rate of the ladder that the ledger says fits.

    Where the ledger thought that even the present one would, or that none does, the next step down.
    """
    limit = ledger_limit(config, member, recipe)
    below = [rate for rate in LADDER if rate < member.rate]
    return next((rate for rate in below if rate <= limit), below[0] if below and limit > 0 else LADDER[-1])


def ledger_limit(config: ModelConfig, member: Member, recipe: Recipe) -> float:
    """The largest rate by the ledger."""
    load = cautious_workload(recipe.training, member.batch, member.samples)
    tables = held_tables(config, recipe.training.embeddings, member.rows)
    return rate_limit(config, member.device.memory, load, tables)
