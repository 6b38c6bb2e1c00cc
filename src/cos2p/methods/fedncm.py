"""FedNCM (Legate et al. 2023): no training at all, the head is the class means of the pretrained model's features.

Every device reports the sum of its features and the count of each class, the server sets row c of the head to the mean
of class c, scaled to length one: exact, whatever the division of the data, after one pass. Reported again, it says the
same. `discriminant` is the same with the scatter inside the classes taken into account (linear discriminant analysis).

What it reveals: how many samples of each class a device has, and the mean of their features (`training.statistics`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from cos2p.aggregation.closed_form import HeadForm
from cos2p.methods.base import Assignment, Call, Forms, RunContext
from cos2p.methods.closed_heads import check_has_classes, statistics_task
from cos2p.methods.frozen_base import FrozenBaseMethod, FrozenBaseSettings
from cos2p.settings import Settings


class FedNcmSettings(FrozenBaseSettings):
    start: Literal["means", "discriminant"] = Field(
        default="means", description="`means` of the classes, or the linear `discriminant` between them."
    )
    finish: Literal["trained"] = Field(default="trained", description="Nothing trains, so it ends as it began.")


class FedNcm(FrozenBaseMethod):
    name: ClassVar[str] = "fedncm"
    title: ClassVar[str] = "FedNCM"
    settings_type: ClassVar[type[Settings]] = FedNcmSettings
    settings: FedNcmSettings
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
