"""Base of methods on a frozen base: it is sent in few bits and streamed, and nobody trains all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from cos2p.aggregation.merge import Merge, SegmentMerge
from cos2p.aggregation.settings import Redispatch
from cos2p.aggregation.triggers import Trigger
from cos2p.memory.parts import HEAD, Part
from cos2p.messages import Precision
from cos2p.methods.adapters.device import LoraTrainer, head_task
from cos2p.methods.base import Assignment, HeadSettings, Member, Method
from cos2p.models.spec import SubmodelSpec
from cos2p.settings import Settings
from cos2p.training.statistics import StatisticsTrainer
from cos2p.training.trainer import Trainer


class FrozenBaseSettings(HeadSettings):
    weights: Literal["uniform", "samples"] = Field(default="uniform", description="How devices are averaged.")
    precision: Precision = Field(
        default="float16", description="Of what is frozen, on the wire: float32, float16 or int8."
    )

    lr_factor: float = Field(default=1.0, gt=0, description="η is the recipe's learning rate times this.")


class LateWorkSettings(FrozenBaseSettings):
    aggregation: Literal["synchronous", "semi-asynchronous"] = Field(
        default="synchronous", description="`semi-asynchronous`: by schedule.mu and schedule.t_clk, late work is kept."
    )


class FrozenBaseMethod(Method):
    """Devices train the head and, where their memory allows, more."""

    by_memory: ClassVar[bool] = True
    trainers: ClassVar[tuple[type[Trainer], ...]] = (LoraTrainer, StatisticsTrainer)
    settings: FrozenBaseSettings

    @classmethod
    def frozen_precision(cls, settings: Settings) -> Precision:
        assert isinstance(settings, FrozenBaseSettings)
        return settings.precision

    def merge(self) -> Merge:
        return SegmentMerge(self.context.config, rule=self.settings.weights)

    def parts(self, member: Member) -> Sequence[Part]:
        return [HEAD]

    def head_alone(self, member: Member) -> Assignment:
        """A task that the smallest device can do."""
        return self.assignment(*head_task(self.context, member), LoraTrainer)

    def assignment(self, spec: SubmodelSpec, settings: Settings, trainer: type[Trainer]) -> Assignment:
        own = self.settings
        return Assignment(spec, settings, trainer, prefix_precision=own.precision, lr_factor=own.lr_factor)


class LateWorkMethod(FrozenBaseMethod):
    """Synchronous rounds, or the paper's semi-asynchronous ones."""

    settings: LateWorkSettings

    def rules(self) -> tuple[Trigger, Redispatch]:
        schedule = self.context.schedule
        if self.settings.aggregation == "synchronous":
            return super().rules()
        return Trigger.semi_asynchronous(schedule.mu, schedule.t_clk), schedule.redispatch
