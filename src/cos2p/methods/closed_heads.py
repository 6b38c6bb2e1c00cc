"""Exits in closed form: a device's first task, its last one, or both, is to report sums of its features (one pass).

What several methods share: the task, and who has reported already; `base.HeadSettings` has the settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from cos2p.aggregation.head_merge import HeadForm, HeadMerge
from cos2p.aggregation.merge import Merge
from cos2p.errors import ConfigError
from cos2p.messages import Order, Precision, Update
from cos2p.methods.base import Assignment, Call, Forms, Member, Method, RunContext, heads_of, trained_instead
from cos2p.methods.frozen_base import FrozenBaseMethod, FrozenBaseSettings
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.settings import Settings
from cos2p.training.statistics import StatisticsSettings, StatisticsTrainer, statistics_spec


def check_has_classes(config: ModelConfig) -> None:
    if config.task != "classification":
        raise ConfigError("exits in closed form are for classifiers; for a language model set exits.start = 'fresh'")


def check_room_to_train(method: Method) -> None:
    """ConfigError if a run that reports at its end has nothing left to train in between."""
    schedule, away = method.context.schedule, f"or {trained_instead(method.settings)}"
    if method.statistics_last and schedule.rounds is not None and schedule.rounds < 3:
        raise ConfigError(f"of {schedule.rounds} rounds the last would only report sums of features; set 3, {away}")
    # Where only some take part in a round, a device may train before another has reported: count one round's.
    statistics_updates = schedule.taking_part(len(method.context.members)) * (
        method.statistics_first + method.statistics_last
    )
    if method.statistics_last and schedule.updates is not None and schedule.updates <= statistics_updates:
        raise ConfigError(
            f"{statistics_updates} of the {schedule.updates} updates would only report sums of features, which leaves "
            f"none to train; set schedule.updates higher, {away}"
        )


def statistics_task(method: Method, member: Member, form: HeadForm, final: bool = False) -> Assignment:
    """Sums of features where the method trains heads, at the end where it is evaluated.

    As many samples pass at a time as the memory allows.
    """
    context, options = method.context, dict(method.statistics_options())
    check_has_classes(context.config)
    precision: Precision = options.pop("precision")
    spec = context.tables(statistics_spec(context.config), member)
    parts = context.training.memory_optimizations.model_copy(update={"micro_batch": "auto"})
    depths = (context.config.depth,) if final else method.head_depths()
    asked = {"depths": tuple(depths), "moments": form == "discriminant", "final": final}
    adapters = method.evaluated_adapters() if final else {}
    local = context.local(member, memory_optimizations=parts).model_dump()
    settings = StatisticsSettings.model_validate({**local, **options, **adapters, **asked})
    return Assignment(spec, settings, trainer=StatisticsTrainer, prefix_precision=precision)


class ClosedHead(Method):
    """A method whose devices report statistics first, at the end, or both, and do its own tasks in between.

    `with_closed_head` puts it before a method."""

    def __init__(self, settings: Settings, context: RunContext) -> None:
        super().__init__(settings, context)
        heads = heads_of(settings)
        assert heads is not None
        self.heads = heads
        self.statistics_first, self.statistics_last = heads.start_form is not None, heads.finish_form is not None
        if self.statistics_last and not self.evaluates_its_weights():
            raise ConfigError(
                f"{self.title} is evaluated by another model than the server's own, so its head cannot be computed at "
                'the end; set method.finish = "trained"'
            )
        self.reported: set[str] = set()
        """Clients that have reported sums of their features."""

    def assign(self, call: Call) -> Assignment:
        start, finish = self.heads.start_form, self.heads.finish_form
        if finish is not None and call.final:
            return statistics_task(self, call.member, finish, final=True)
        if start is not None and call.member.name not in self.reported:
            return statistics_task(self, call.member, start)
        return super().assign(call)

    def merge(self) -> Merge:
        return HeadMerge(super().merge(), self.heads.start_form, self.heads.finish_form)

    def accepted(self, order: Order, update: Update) -> None:
        if order.trainer == StatisticsTrainer.name:
            self.reported.add(order.client)
        else:
            super().accepted(order, update)

    def state(self) -> tuple[dict[str, Any], Weights]:
        values, tensors = super().state()
        return {**values, "reported": sorted(self.reported)}, tensors

    def load_state(self, values: Mapping[str, Any], tensors: Weights) -> None:
        super().load_state(values, tensors)
        self.reported = set(values["reported"])


def with_closed_head(method: type[Method]) -> type[Method]:
    """The method with a head that starts or ends in closed form; any method, whatever its tasks and its merge."""
    return type(method.__name__, (ClosedHead, method), {"__doc__": method.__doc__, "__module__": method.__module__})


class FedNcmSettings(FrozenBaseSettings):
    start: Literal["means", "discriminant"] = Field(
        default="means", description="`means` of the classes, or the linear `discriminant` between them."
    )
    finish: Literal["trained"] = Field(default="trained", description="Nothing trains, so it ends as it began.")


class FedNcm(FrozenBaseMethod):
    """FedNCM (Legate et al. 2023): no training at all, the head is the class means of the pretrained model's features.

    Every device reports the sum of its features and the count of each class, the server sets row c of the head to the
    mean of class c, scaled to length one: exact, whatever the division of the data, after one pass. `discriminant` is
    the same with the scatter inside the classes taken into account (linear discriminant analysis).

    What it reveals: how many samples of each class a device has, and their mean features (`training.statistics`).
    """

    name: ClassVar[str] = "fedncm"
    title: ClassVar[str] = "FedNCM"
    settings_type: ClassVar[type[Settings]] = FedNcmSettings
    settings: FedNcmSettings
    one_round: ClassVar[bool] = True
    forms: ClassVar[Forms] = {"discriminant": ("method.start=discriminant",)}

    def __init__(self, settings: Settings, context: RunContext) -> None:
        super().__init__(settings, context)
        check_has_classes(context.config)

    @classmethod
    def pretrained(cls, language: bool) -> Mapping[str, Any]:
        return {}  # means are what it is about, of any model

    def assign(self, call: Call) -> Assignment:
        form: HeadForm = self.settings.start
        return statistics_task(self, call.member, form)
