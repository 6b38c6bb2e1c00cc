"""Tasks on a frozen base: adapters of some rank and the head, or the head alone."""

from __future__ import annotations

from typing import Literal

from cos2p.methods.adapters.device import AdapterSettings, LoraSettings
from cos2p.methods.base import Member, RunContext
from cos2p.models.spec import BlockKeep, SubmodelSpec
from cos2p.settings import shared

HEAD_STEP = 30.0
"""η of a head alone, as a multiple of the recipe's, which is for blocks."""


def adapter_task(
    context: RunContext,
    member: Member,
    rank: int,
    frozen: int,
    blocks: tuple[int, ...],
    adapters: AdapterSettings,
    factors: Literal["both", "up"] = "both",
) -> tuple[SubmodelSpec, LoraSettings]:
    """Adapters of this rank in `blocks`, which run at every step; those below `frozen` run once."""
    config = context.config
    window = (BlockKeep.full(config),) * (config.depth - frozen)
    spec = SubmodelSpec(frozen, window, (config.depth,), fixed_embeddings=True)
    local = context.local(member).model_dump()
    own = {**shared(adapters, AdapterSettings), "rank": rank, "blocks": blocks, "factors": factors}
    return spec, LoraSettings.model_validate({**local, **own})


def head_task(context: RunContext, member: Member) -> tuple[SubmodelSpec, LoraSettings]:
    """The head alone."""
    top = context.config.depth - 1
    return adapter_task(context, member, 0, top, (top,), AdapterSettings())
