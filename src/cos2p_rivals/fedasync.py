"""FedAsync (Xie, Koyejo, Gupta 2019): every device trains the full model, each update is mixed in as it arrives.

Algorithm 1 of the paper: w ← (1 − α_v)·w + α_v·x_new with α_v = α·s(τ), and the device gets the new w at once. s is
the paper's polynomial, (τ+1)^(−a). Devices minimise f(x) + ρ/2·‖x − x_τ‖². τ counts versions, which here are updates:
with N equal devices it is about N − 1.

Defaults: α = 0.6 and a = 0.5 as in public implementations of the paper; ρ = 0.005, from memory of its experiments;
`rho = 0` trains without the term (and saves 4 bytes a parameter). Updates of any
age are merged. Full models cannot keep a device's budget: this
is a bound to compare with.

x_new is the model the device trained, of which a submodel holds a part: only those scalars move. α_v is computed anew
for each arrival from the constant α (an implementation that multiplies a stored α by s decays for ever). On the device
the term is added to the gradient, so that the optimiser sees it as a part of the loss (weight decay here is decoupled
and would not be); the model as it came has to stay in memory for it.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field

from cos2p import ModelConfig
from cos2p.methods import (
    OPTIMIZATIONS,
    Assignment,
    Call,
    Contribution,
    ExtendedSettings,
    HeadSettings,
    Merge,
    Method,
    Redispatch,
    Settings,
    SubmodelSpec,
    SubmodelTrainer,
    Trainer,
    Trigger,
    Weights,
    even_weight,
    shared,
    trained_shapes,
    window_slices,
)
from cos2p_rivals.segment_reports import SegmentContract
from cos2p_rivals.sizes import FLOAT, scalars


def damped(staleness: int, exponent: float) -> float:
    """s(τ): how much an update counts that is τ versions old.

    >>> damped(3, 0.5)
    0.5
    """
    return float((staleness + 1.0) ** -exponent)


class MixingSettings(Settings):
    """The server's side of FedAsync."""

    alpha: float = Field(default=0.6, ge=0, le=1, description="α: share of a fresh update in the new model.")
    exponent: float = Field(default=0.5, ge=0, description="a of s(τ) = (τ+1)^(−a); 0: no damping.")


class ProximalSettings(Settings):
    """The device's side of FedAsync."""

    rho: float = Field(
        default=0.005, ge=0, description="ρ: pull towards the received model in local training; 0: none."
    )


class ProximalTask(ExtendedSettings, ProximalSettings):
    """Plain training with the term."""


class FedAsyncSettings(MixingSettings, ProximalSettings, HeadSettings):
    """Mixing on the server, a proximal term on the devices."""


class ProximalContract(SegmentContract):
    flops_per_scalar = 4

    def held_bytes(self) -> int:
        return FLOAT * scalars(trained_shapes(self.config, self.order.spec))


class ProximalTrainer(Trainer):
    """The device: adds ρ(x − x_τ) to the gradient, that is ρ/2·‖x − x_τ‖² to the loss; x_τ is the model as it came."""

    name: ClassVar[str] = "proximal"
    contract_type = ProximalContract
    settings_type = ProximalTask
    supports = OPTIMIZATIONS - {"step_in_backward"}
    settings: ProximalTask

    def before_step(self) -> None:
        rho = self.settings.rho
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach(), alpha=rho).sub_(self.start[name], alpha=rho)


class MixingMerge(Merge):
    """The server: mixes each update into the next version as it arrives; several before one are mixed one by one."""

    groups: ClassVar[tuple[str, ...]] = ("next", "holders")
    next: Weights
    """The tensors that have moved since the last version."""

    def __init__(self, config: ModelConfig, alpha: float, exponent: float) -> None:
        super().__init__(config)
        self.alpha, self.exponent = alpha, exponent

    def weigh(self, item: Contribution, current: Weights) -> dict[str, float] | None:
        return even_weight(self.alpha * damped(item.staleness, self.exponent))

    def add(self, item: Contribution, current: Weights) -> dict[str, float]:
        alpha = self.alpha * damped(item.staleness, self.exponent)
        for name, cut in window_slices(self.config, item.spec).items():
            now, received, delta = self.next.get(name, current[name]), item.received[name], item.delta[name]
            if cut is None:
                self.next[name] = torch.lerp(now, received - delta, alpha)
                continue
            held = torch.lerp(now.index_select(*cut), received.index_select(*cut) - delta, alpha)
            self.next[name] = now.index_copy(*cut, held)
        self.count_holders(item)
        return even_weight(alpha)

    def apply(self, current: Weights) -> Weights:
        updated = {**current, **self.next}
        self.clear("next")
        return updated


class FedAsync(Method):
    name: ClassVar[str] = "fedasync"
    title: ClassVar[str] = "FedAsync (full)"
    settings_type: ClassVar[type[Settings]] = FedAsyncSettings
    trainers: ClassVar[tuple[type[Trainer], ...]] = (SubmodelTrainer, ProximalTrainer)
    over_budget: ClassVar[bool] = True
    settings: FedAsyncSettings

    def rules(self) -> tuple[Trigger, Redispatch]:
        return Trigger.asynchronous(), "at-once"

    def assign(self, call: Call) -> Assignment:
        spec, local = SubmodelSpec.full(self.context.config), self.context.local(call.member)
        if self.settings.rho == 0:
            return Assignment(spec, local)
        task = ProximalTask(local=local, **shared(self.settings, ProximalSettings))
        return Assignment(spec, task, ProximalTrainer)

    def merge(self) -> Merge:
        return MixingMerge(self.context.config, self.settings.alpha, self.settings.exponent)
