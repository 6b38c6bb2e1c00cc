"""FedAsync (Xie, Koyejo, Gupta 2019): every device trains the full model, each update is mixed in as it arrives.

Algorithm 1 of the paper: w ← (1 − α_v)·w + α_v·x_new with α_v = α·s(τ), and the device gets the new w at once. s is
constant, polynomial (τ+1)^(−a), or a hinge (Section 4). Devices minimise f(x) + ρ/2·‖x − x_τ‖². τ counts versions,
which here are updates: with N equal devices it is about N − 1.

Defaults: α = 0.6 and a = 0.5 (polynomial), hinge a = 10, b = 4 as in public implementations of the paper; ρ = 0.005,
from memory of the paper's experiments; `rho = 0` trains without the term (and saves 4 bytes a parameter). Updates too
old are dropped only if the recipe says so (`schedule.max_staleness`). Full models cannot keep a device's budget: this
is a bound to compare with.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from cos2p.aggregation.mixing import Damping, DampingKind, MixingMerge
from cos2p.aggregation.rules import Redispatch
from cos2p.aggregation.triggers import Trigger
from cos2p.methods.base import Assignment, Call, Merge, Method
from cos2p.models.spec import SubmodelSpec
from cos2p.settings import Settings
from cos2p.training.proximal import ProximalTask


class MixingSettings(Settings):
    """The server's side of FedAsync."""

    alpha: float = Field(default=0.6, ge=0, le=1, description="α: share of a fresh update in the new model.")
    staleness: DampingKind = Field(default="polynomial", description="s(τ): `constant`, `polynomial` or `hinge`.")
    exponent: float = Field(default=0.5, ge=0, description="a of the polynomial (τ+1)^(−a).")
    hinge_slope: float = Field(default=10.0, ge=0, description="a of the hinge 1/(a(τ−b)+1).")
    hinge_start: float = Field(default=4.0, ge=0, description="b of the hinge: nothing is damped up to here.")

    def damping(self) -> Damping:
        slope = self.hinge_slope if self.staleness == "hinge" else self.exponent
        return Damping(self.staleness, slope, self.hinge_start)


class FedAsyncSettings(MixingSettings):
    rho: float = Field(
        default=0.005, ge=0, description="ρ: pull towards the received model in local training; 0: none."
    )


class FedAsync(Method):
    name: ClassVar[str] = "fedasync"
    title: ClassVar[str] = "FedAsync (full)"
    settings_type: ClassVar[type[Settings]] = FedAsyncSettings
    over_budget: ClassVar[bool] = True
    settings: FedAsyncSettings

    def rules(self) -> tuple[Trigger, Redispatch]:
        return Trigger.asynchronous(), "at-once"

    def assign(self, call: Call) -> Assignment:
        spec, local = SubmodelSpec.full(self.context.config), self.context.local(call.member)
        if self.settings.rho == 0:
            return Assignment(spec, local)
        return Assignment(spec, ProximalTask(local=local, rho=self.settings.rho), trainer="proximal")

    def merge(self) -> Merge:
        return MixingMerge(self.context.config, self.settings.alpha, self.settings.damping())
