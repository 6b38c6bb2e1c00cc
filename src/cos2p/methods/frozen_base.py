"""What methods on a frozen base have in common: it is sent in few bits and streamed, and nobody trains all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from cos2p.aggregation.closed_form import HeadForm
from cos2p.aggregation.head_merge import HeadMerge
from cos2p.aggregation.merge import Merge
from cos2p.aggregation.rules import Redispatch
from cos2p.aggregation.triggers import Trigger
from cos2p.messages import Order, Precision, Update
from cos2p.methods.adapters.device import LoraTrainer
from cos2p.methods.adapters.tasks import head_tasks
from cos2p.methods.base import Assignment, Call, Member, Method, RunContext
from cos2p.methods.closed_heads import HeadStart, statistics_assignment
from cos2p.methods.fitting import STORES, first_that_fits
from cos2p.models.layout import Weights
from cos2p.models.spec import SubmodelSpec
from cos2p.settings import Settings
from cos2p.training.statistics import StatisticsTrainer
from cos2p.training.trainer import Trainer


class FrozenBaseSettings(HeadStart):
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
    def pretrained(cls, language: bool) -> Mapping[str, Any]:
        """The head starts in closed form, as Co-S²P's does there."""
        return {} if language else {"start": "discriminant"}

    def __init__(self, settings: Settings, context: RunContext) -> None:
        super().__init__(settings, context)
        self.gathers_first = self.settings.start_form is not None
        self.told: set[str] = set()
        """Clients that have told sums of their features."""

    def assign(self, call: Call) -> Assignment:
        """At first what the head starts from, if it is to be found in closed form; then the method's own tasks."""
        form = self.settings.start_form
        if form is None or call.member.name in self.told:
            return self.train_task(call)
        return self.statistics_task(call.member, form)

    def train_task(self, call: Call) -> Assignment:
        raise NotImplementedError

    def head_depths(self) -> Sequence[int]:
        """Where heads are trained, by the number of blocks below them."""
        return (self.context.config.depth,)

    def statistics_task(self, member: Member, form: HeadForm) -> Assignment:
        """Sums of features at the top, with as little memory as they can be found in."""
        options = (
            statistics_assignment(
                self.context, member, self.head_depths(), form, self.settings.precision, features=store
            )
            for store in STORES
        )
        return first_that_fits(self, member, options, "one pass over the data")

    def merge(self) -> Merge:
        return HeadMerge(
            self.context.config, self.settings.start_form, None, self.settings.ridge, rule=self.settings.weights
        )

    def accepted(self, order: Order, update: Update) -> None:
        if order.trainer == StatisticsTrainer.name:
            self.told.add(order.client)

    def state(self) -> tuple[dict[str, Any], Weights]:
        return {"told": sorted(self.told)}, {}

    def load_state(self, values: Mapping[str, Any], tensors: Weights) -> None:
        self.told = set(values["told"])

    def head_alone(self, member: Member) -> Assignment:
        """What the smallest device can do; BudgetError if it cannot."""
        options = (self.assignment(*task, LoraTrainer) for task in head_tasks(self.context, member))
        return first_that_fits(self, member, options, "the head alone")

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
