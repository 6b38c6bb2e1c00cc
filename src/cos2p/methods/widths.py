"""Base of methods that cut only the width: the equal-budget rule, and ways to pick segments.

A device of rate R_n holds all L blocks, with N_H = ⌊R_n·L·h⌋ heads and N_U = ⌊R_n·L·f⌋ units in all: never more than
R_n of what can be pruned, exactly as much as Co-S²P gets. Where methods do not rank segments over all blocks, the
counts are spread evenly and the remainder goes to other blocks in every round. A block may hold no head or no unit at
all: its sublayer then adds its output bias alone, as the masked full model would.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field

from cos2p.aggregation.merge import Merge, SegmentMerge
from cos2p.methods.base import Forms, HeadSettings, Member, Method, RunContext
from cos2p.models.config import ModelConfig
from cos2p.models.spec import BlockKeep, SubmodelSpec
from cos2p.settings import Settings
from cos2p.submodel.rates import SubmodelSize, cut
from cos2p.training.settings import LocalSettings

WITHOUT_SCALER: Forms = {"no scaler": ("method.rescale=false",)}
"""A form (`Method.forms`) of methods that rescale in training by default."""


class WidthSettings(HeadSettings):
    rescale: bool = Field(
        default=True, description="Training-time 1/(kept share) on attention and MLP outputs (FedRolex's Scaler)."
    )


class AveragingSettings(WidthSettings):
    weights: Literal["uniform", "samples"] = Field(
        default="uniform", description="How the holders of a segment are averaged: equally, or by their samples."
    )


class WidthMethod(Method):
    """Base of the width-only methods: everybody's budget, local training with one exit."""

    settings_type: ClassVar[type[Settings]] = WidthSettings
    settings: WidthSettings

    def __init__(self, settings: Settings, context: RunContext) -> None:
        super().__init__(settings, context)
        self.budgets: dict[str, SubmodelSize] = {
            n: cut(context.config, m.rate, ratio=0.0) for n, m in context.members.items()
        }

    def local(self, member: Member) -> LocalSettings:
        return self.context.local(member, rescale=self.settings.rescale)


class AveragingMethod(WidthMethod):
    """Selective aggregation: Σ p_n·w_n / Σ p_n over the holders of each segment; what nobody holds stays bitwise."""

    settings_type: ClassVar[type[Settings]] = AveragingSettings
    settings: AveragingSettings

    def merge(self) -> Merge:
        return SegmentMerge(self.context.config, self.settings.weights)


def width_spec(heads: Sequence[Iterable[int]], units: Sequence[Iterable[int]]) -> SubmodelSpec:
    """All blocks with these segments each, and the last exit."""
    window = tuple(BlockKeep.of(h, u) for h, u in zip(heads, units, strict=True))
    return SubmodelSpec(0, window, (len(window),))


def rolling(segments: int, count: int, start: int) -> list[int]:
    """`count` neighbours from `start` on, around the end.

    >>> rolling(8, 3, 6)
    [6, 7, 0]
    """
    return [(start + i) % segments for i in range(count)]


def spread_at_random(total: int, blocks: int, rng: torch.Generator) -> list[int]:
    """Evenly, the remainder to blocks drawn anew: every segment is as likely as any other."""
    base, extra = divmod(total, blocks)
    lucky = set(torch.randperm(blocks, generator=rng)[:extra].tolist())
    return [base + (block in lucky) for block in range(blocks)]


def drawn(segments: int, counts: Sequence[int], rng: torch.Generator) -> list[list[int]]:
    """So many segments of each block, without replacement."""
    return [torch.randperm(segments, generator=rng)[:count].tolist() for count in counts]


def random_spec(config: ModelConfig, budget: SubmodelSize, rng: torch.Generator) -> SubmodelSpec:
    """A submodel of the budget's size, drawn uniformly."""
    heads = drawn(config.groups, spread_at_random(budget.heads, config.depth, rng), rng)
    units = drawn(config.mlp, spread_at_random(budget.units, config.depth, rng), rng)
    return width_spec(heads, units)
