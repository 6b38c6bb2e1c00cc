"""FedAvg (McMahan et al. 2017): every device trains the full model, the server averages. The upper bound."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from cos2p.aggregation.merge import Merge, SegmentMerge
from cos2p.methods.base import Assignment, Call, HeadSettings, Method
from cos2p.models.spec import SubmodelSpec
from cos2p.settings import Settings


class FedAvgSettings(HeadSettings):
    weights: Literal["uniform", "samples"] = Field(
        default="uniform", description="`uniform`: the paper's objective, 1/N per client; `samples`: the textbook's."
    )


class FedAvg(Method):
    """w ← Σ p_n w_n over all clients, once per synchronous round."""

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "FedAvg (full)"
    settings_type: ClassVar[type[Settings]] = FedAvgSettings
    over_budget: ClassVar[bool] = True
    settings: FedAvgSettings

    def assign(self, call: Call) -> Assignment:
        return Assignment(SubmodelSpec.full(self.context.config), self.context.local(call.member))

    def merge(self) -> Merge:
        return SegmentMerge(self.context.config, self.settings.weights)
