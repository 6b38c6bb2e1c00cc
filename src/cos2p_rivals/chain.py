"""Progressive training (ProFL, NeuLite, SLT): groups of blocks from the bottom to the top, one after the other.

All devices are in the same stage. In a stage the groups below are frozen (their features are computed once per task),
one group trains, and above it there is

    form = "exit"    nothing but an exit (ProFL, NeuLite)
    form = "thin"    all higher blocks at a small share of their width, trained along (SLT): the loss is at the true top

The run is divided into as many equal parts as there are stages; the last stage trains the top group and the model's own
head. A group is as large as the smallest device can hold; a larger device takes the next blocks too. A device that can
hold no group trains the model's head. Rounds are synchronous, so no update of an earlier stage comes late.

Ours: equal parts instead of freezing when weights stop moving (a rule that short runs never reach), and no information
terms in the loss (NeuLite). `first` leaves the blocks below it as they are (ChainFed's starting layer).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from cos2p import SubmodelSpec
from cos2p.methods import (
    Assignment,
    BlockKeep,
    BudgetError,
    Call,
    ConfigError,
    Forms,
    FrozenBaseMethod,
    FrozenBaseSettings,
    Member,
    Order,
    Part,
    RunContext,
    Settings,
    SubmodelTrainer,
    Trainer,
    Update,
    Weights,
)


class ChainSettings(FrozenBaseSettings):
    form: Literal["exit", "thin"] = Field(
        default="exit", description="Above the group: an `exit`, or all higher blocks `thin`, trained along."
    )
    thin_share: float = Field(default=0.125, gt=0, le=1, description="Share of the width of the higher blocks.")
    first: int = Field(default=0, ge=0, description="The first block that is trained; those below stay as they are.")
    embeddings: bool = Field(default=False, description="The lowest group trains the embeddings too.")


class Chain(FrozenBaseMethod):
    name: ClassVar[str] = "chain"
    title: ClassVar[str] = "progressive chain"
    settings_type: ClassVar[type[Settings]] = ChainSettings
    trainers: ClassVar[tuple[type[Trainer], ...]] = (SubmodelTrainer, *FrozenBaseMethod.trainers)
    settings: ChainSettings
    forms: ClassVar[Forms] = {"thin": ("method.form=thin",)}

    def __init__(self, settings: Settings, context: RunContext) -> None:
        super().__init__(settings, context)
        if self.settings.first >= context.config.depth:
            raise ConfigError(f"first is {self.settings.first}; the model has blocks 0 to {context.config.depth - 1}")
        self.merged = self.version = 0
        """Updates that trained and were merged so far, and the version that the newest task was cut from."""
        self.sizes = {name: self._size(member) for name, member in context.members.items()}
        """Most blocks that each member can train at any place; 0: the head alone."""
        smallest = min(filter(None, self.sizes.values()), default=context.config.depth)
        self.starts = range(self.settings.first, context.config.depth, smallest)
        """Where the stages' groups begin."""

    def stage(self, version: int) -> int:
        """Which part of the run this is."""
        progress = self.context.schedule.share_done(version, self.merged, self.statistics_updates)
        return min(len(self.starts) - 1, int(progress * len(self.starts)))

    def assign(self, call: Call) -> Assignment:
        self.version = call.version
        if self.sizes[call.member.name] == 0:
            return self.head_alone(call.member)
        return self.group(call.member, self.next_blocks(call.member, call.cycle))

    def next_blocks(self, member: Member, cycle: int) -> range:
        start = self.starts[self.stage(self.version)]
        return range(start, min(start + max(1, self.sizes[member.name]), self.context.config.depth))

    def head_depths(self) -> Sequence[int]:
        depth = self.context.config.depth
        return range(1, depth + 1) if self.settings.form == "exit" else (depth,)

    def parts(self, member: Member) -> Sequence[Part]:
        return Part.blocks(self.context.config.depth - self.settings.first)

    def _size(self, member: Member) -> int:
        try:
            part = self.part_of(member)
        except BudgetError:  # its task is refused, with what is missing
            return 0
        return 0 if part.kind == "head" else int(part.size)

    def group(self, member: Member, blocks: range) -> Assignment:
        config, settings = self.context.config, self.settings
        window = (BlockKeep.full(config),) * len(blocks)
        if settings.form == "thin":
            heads, units = (max(1, int(settings.thin_share * size)) for size in (config.groups, config.mlp))
            thin = BlockKeep(tuple(range(heads)), tuple(range(units)))
            window += (thin,) * (config.depth - blocks.stop)
        spec = SubmodelSpec(
            blocks.start, window, (blocks.start + len(window),), fixed_embeddings=not settings.embeddings
        )
        return self.assignment(spec, self.context.local(member), SubmodelTrainer)

    def accepted(self, order: Order, update: Update) -> None:
        self.merged += 1

    def state(self) -> tuple[dict[str, Any], Weights]:
        return {"merged": self.merged, "version": self.version}, {}

    def load_state(self, values: Mapping[str, Any], tensors: Weights) -> None:
        self.merged, self.version = int(values["merged"]), int(values["version"])
