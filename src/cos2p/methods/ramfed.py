"""RAM-Fed and RA-Fed (Wang et al., KDD 2023): random submodels; with memory, the server repeats what it last heard.

RA-Fed: in every task a device trains a submodel drawn anew; the server averages over the holders of each segment.
RAM-Fed: the server also keeps every client's latest update of every region and applies all of them in every round,
w ← w + (1/N) Σ m_n, clients and regions that were not trained in the round included.

From the paper and its public code: the memory rule, 1/N over all clients, shared tensors replaced in every round,
equal weights. Ours, because the code's choices need the full model on every device or are no structured masks: the
draw is N_H heads and N_U units of all blocks, uniformly without replacement (the code keeps whole quarters of each
matrix, so 25, 50 or 75 %); there is no first round with the full model to fill the memory, which stays zero until a
region is first visited; there is no common half mask in every tenth round. `denominator = "filled"` divides by the
clients that know a region instead, which in the code is the same thing and here is not: the first visitor's update
would be applied at full strength in every round until it or others come by again. Training-time rescaling is on, as
for all width-only methods (a trial: 46 → 55 points).
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from cos2p.aggregation.memory import Denominator, MemoryMerge
from cos2p.methods.base import Assignment, Call, Forms, Merge
from cos2p.methods.widths import (
    WITHOUT_SCALER,
    AveragingMethod,
    AveragingSettings,
    WidthMethod,
    WidthSettings,
    random_spec,
)
from cos2p.seeding import torch_rng
from cos2p.settings import Settings


class RandomSubmodels(WidthMethod):
    """A submodel of the device's size, drawn anew for every task."""

    def assign(self, call: Call) -> Assignment:
        rng = torch_rng(self.context.seed, "random submodel", call.member.name, call.attempt)
        spec = random_spec(self.context.config, self.budgets[call.member.name], rng)
        return Assignment(spec, self.local(call.member))


class RaFed(RandomSubmodels, AveragingMethod):
    name: ClassVar[str] = "rafed"
    title: ClassVar[str] = "RA-Fed"
    settings_type: ClassVar[type[Settings]] = AveragingSettings
    forms: ClassVar[Forms] = WITHOUT_SCALER


class RamFedSettings(WidthSettings):
    denominator: Denominator = Field(
        default="clients", description="What Σ m_n is divided by: N (the paper), or the clients that know a region."
    )
    max_age: int | None = Field(
        default=None, ge=1, description="Rounds after which a remembered update counts no more. Empty: never."
    )


class RamFed(RandomSubmodels):
    name: ClassVar[str] = "ramfed"
    title: ClassVar[str] = "RAM-Fed"
    settings_type: ClassVar[type[Settings]] = RamFedSettings
    settings: RamFedSettings
    forms: ClassVar[Forms] = {**WITHOUT_SCALER, "over holders": ("method.denominator=filled",)}

    def merge(self) -> Merge:
        config, settings = self.context.config, self.settings
        return MemoryMerge(config, len(self.context.members), settings.denominator, settings.max_age)
