"""What methods on a frozen base have in common: it is sent in few bits and streamed, and nobody trains all of it."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from cos2p.aggregation.merge import Merge, SegmentMerge
from cos2p.aggregation.rules import Redispatch
from cos2p.aggregation.triggers import Trigger
from cos2p.messages import Precision
from cos2p.methods.adapters.device import AdapterSettings, LoraSettings, LoraTrainer
from cos2p.methods.base import Assignment, Member, Method
from cos2p.methods.fitting import STORES, Store, first_that_fits
from cos2p.models.spec import BlockKeep, SubmodelSpec
from cos2p.settings import Settings, shared
from cos2p.training.trainer import Trainer


class FrozenBaseSettings(Settings):
    weights: Literal["uniform", "samples"] = Field(default="uniform", description="How devices are averaged.")
    precision: Precision = Field(
        default="float16", description="Of what is frozen, on the wire: float32, float16 or int8."
    )


class LateWorkSettings(FrozenBaseSettings):
    aggregation: Literal["synchronous", "semi-asynchronous"] = Field(
        default="synchronous", description="`semi-asynchronous`: by schedule.mu and schedule.t_clk, late work is kept."
    )


class FrozenBaseMethod(Method):
    """Devices train the head and, where their memory allows, more."""

    trainers: ClassVar[tuple[type[Trainer], ...]] = (LoraTrainer,)
    settings: FrozenBaseSettings

    def merge(self) -> Merge:
        return SegmentMerge(self.context.config, self.settings.weights)

    def head_alone(self, member: Member) -> Assignment:
        """What the smallest device can do; BudgetError if it cannot."""
        top = self.context.config.depth - 1
        options = (self.adapter_task(member, 0, top, (top,), store, AdapterSettings()) for store in STORES)
        return first_that_fits(self, member, options, "the head alone")

    def adapter_task(
        self,
        member: Member,
        rank: int,
        frozen: int,
        blocks: tuple[int, ...],
        features: Store,
        adapters: AdapterSettings,
        factors: Literal["both", "up"] = "both",
    ) -> Assignment:
        """Adapters of this rank in `blocks`, which run at every step; those below `frozen` run once."""
        config = self.context.config
        window = (BlockKeep.full(config),) * (config.depth - frozen)
        spec = SubmodelSpec(frozen, window, (config.depth,), fixed_embeddings=True)
        local = self.context.local(member, features=features).model_dump()
        settings = LoraSettings.model_validate(
            {**local, **shared(adapters, AdapterSettings), "rank": rank, "blocks": blocks, "factors": factors}
        )
        return Assignment(spec, settings, LoraTrainer, prefix_precision=self.settings.precision)


class LateWorkMethod(FrozenBaseMethod):
    """Synchronous rounds, or the paper's semi-asynchronous ones."""

    settings: LateWorkSettings

    def rules(self) -> tuple[Trigger, Redispatch]:
        schedule = self.context.schedule
        if self.settings.aggregation == "synchronous":
            return super().rules()
        return Trigger.semi_asynchronous(schedule.mu, schedule.t_clk), schedule.redispatch
