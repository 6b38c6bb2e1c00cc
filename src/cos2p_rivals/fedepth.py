"""Federated block coordinate descent (FeDepth, Zhang et al. 2023; LISA, Pan et al. 2024): some blocks at a time.

A device trains one group of consecutive blocks and the head, with the loss at the true top: what lies below only
infers, once; what lies above is frozen, streamed, and differentiated through. Only the group and the head travel back;
the server averages each over those who trained it.

    order = "up", "down"    groups in turn, by the device's own counter (FeDepth's way, one group a task)
    order = "random"        a group drawn for every task (LISA's way)

A group has as many blocks as fit the device's memory wherever the group lies. A device that cannot hold one trains the
head alone. With one group for all blocks and `embeddings`, this is FedAvg.

Ours: FeDepth passes through all groups within one task and sends everything back; here a task is one group, so that
tasks of all methods see equally much data. LISA draws two single blocks; here a group's blocks are neighbours, since
between two trained blocks everything would have to be held. Optimisers start afresh at every task, as in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field

from cos2p import SubmodelSpec
from cos2p.methods import (
    Assignment,
    BlockKeep,
    Call,
    Forms,
    LateWorkMethod,
    LateWorkSettings,
    Member,
    Part,
    RunContext,
    Settings,
    SubmodelTrainer,
    Trainer,
    torch_rng,
)


class FeDepthSettings(LateWorkSettings):
    order: Literal["up", "down", "random"] = Field(
        default="up", description="Groups from the lowest `up` or from the top `down`, or drawn at `random`."
    )
    together: bool = Field(default=False, description="All devices at the same place in a round, not by own counters.")
    blocks: int = Field(default=0, ge=0, description="Most blocks of a group; 0: as many as fit.")
    embeddings: bool = Field(default=False, description="The lowest group trains the embeddings too.")


class FeDepth(LateWorkMethod):
    name: ClassVar[str] = "fedepth"
    title: ClassVar[str] = "FeDepth"
    settings_type: ClassVar[type[Settings]] = FeDepthSettings
    trainers: ClassVar[tuple[type[Trainer], ...]] = (SubmodelTrainer, *LateWorkMethod.trainers)
    settings: FeDepthSettings
    forms: ClassVar[Forms] = {
        "LISA": ("method.order=random",),
        "together": ("method.order=down", "method.together=true"),
    }

    def __init__(self, settings: Settings, context: RunContext) -> None:
        super().__init__(settings, context)
        self._groups: dict[str, list[Assignment]] = {}

    def parts(self, member: Member) -> Sequence[Part]:
        depth = self.context.config.depth
        return Part.blocks(min(depth, self.settings.blocks or depth))

    def assign(self, call: Call) -> Assignment:
        groups = self.groups(call.member)
        if not groups:
            return self.head_alone(call.member)
        # A draw is a new one at every try; a turn is kept until its update was accepted.
        own = call.attempt if self.settings.order == "random" else call.cycle
        return groups[self.turn(call.member, call.version if self.settings.together else own)]

    def next_blocks(self, member: Member, cycle: int) -> range:
        groups = self.groups(member)
        if not groups:
            return range(self.context.config.depth - 1, self.context.config.depth)
        spec = groups[self.turn(member, cycle)].spec
        return range(spec.frozen, spec.top)

    def turn(self, member: Member, count: int) -> int:
        """Which of its groups a member trains at its `count`-th turn."""
        groups = len(self.groups(member))
        if self.settings.order == "random":
            who = "all" if self.settings.together else member.name
            return int(torch.randint(groups, (), generator=torch_rng(self.context.seed, "group", who, count)))
        return count % groups if self.settings.order == "up" else -1 - count % groups

    def groups(self, member: Member) -> list[Assignment]:
        """A member's tasks from the lowest group to the top; none if it cannot hold one."""
        if member.name not in self._groups:
            part, depth = self.part_of(member), self.context.config.depth
            count = int(part.size)
            # The last group ends at the top, and may overlap the one below it.
            starts = [] if part.kind == "head" else [min(start, depth - count) for start in range(0, depth, count)]
            self._groups[member.name] = [self.group(member, range(start, start + count)) for start in starts]
        return self._groups[member.name]

    def group(self, member: Member, blocks: range) -> Assignment:
        config = self.context.config
        spec = SubmodelSpec(
            blocks.start,
            (BlockKeep.full(config),) * len(blocks),
            (config.depth,),
            suffix=blocks.stop < config.depth,
            fixed_embeddings=not self.settings.embeddings,
        )
        return self.assignment(spec, self.context.local(member), SubmodelTrainer)
