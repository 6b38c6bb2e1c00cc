"""FedBuff (Nguyen et al., AISTATS 2022): asynchronous devices with the full model, updates applied K at a time.

Algorithm 1 of the paper: Δ is the difference to the model the device received; the server adds s(τ)·Δ with
s(τ) = (1+τ)^(−1/2) to a buffer and, when K updates are in it, takes w ← w − η_g·B/K. A device may be in it twice and
gets a new task as soon as it reported.

From the paper: the rule, division by K, η_g = 1 as plain averaging. Ours: K = ⌈μN⌉, so that it waits for as many
updates as Co-S²P does (the paper's K is 10 for thousands of devices). Two public implementations differ: one sums
without dividing by K (its learning rate absorbs it), one damps by 1/(1+√τ). Full models cannot keep a device's
budget: this is a bound to compare with.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field

from cos2p.methods import (
    Assignment,
    Call,
    Contribution,
    HeadSettings,
    Merge,
    Method,
    Redispatch,
    Settings,
    SubmodelSpec,
    Trigger,
    Weights,
    even_weight,
    expand,
    segmented,
    window_slices,
)
from cos2p_rivals.fedasync import damped

EXPONENT = 0.5
"""a of s(τ) = (1+τ)^(−a)."""


class FedBuffSettings(HeadSettings):
    buffer: int | None = Field(
        default=None, ge=1, description="K: updates per aggregation. Empty: ⌈μN⌉, with μ of the schedule."
    )


class BufferMerge(Merge):
    """B ← B + s(τ)·Δ, then w ← w − B / K.

    When it is applied is the trigger's business; a part-filled buffer at the end of a run is a smaller K. The sum is
    divided by the number of updates, not by Σs: stale updates are damped, fresh ones are not raised in exchange. Where
    an update is a submodel's, each scalar is divided by the updates that hold it, which for full models is K; scalars
    nobody holds stay bitwise.
    """

    groups: ClassVar[tuple[str, ...]] = ("sum", "holders")
    sum: Weights

    def weigh(self, item: Contribution, current: Weights) -> dict[str, float] | None:
        return even_weight(damped(item.staleness, EXPONENT))

    def add(self, item: Contribution, current: Weights) -> dict[str, float]:
        factor = damped(item.staleness, EXPONENT)
        for name, cut in window_slices(self.config, item.spec).items():
            if name not in self.sum:
                self.sum[name] = torch.zeros_like(current[name])
            if cut is None:
                self.sum[name].add_(item.delta[name], alpha=factor)
            else:
                self.sum[name].index_add_(*cut, item.delta[name], alpha=factor)
        self.count_holders(item)
        return even_weight(factor)

    def apply(self, current: Weights) -> Weights:
        updated = dict(current)
        for name, total in self.sum.items():
            key = segmented(self.config)[name].key
            inverse = expand({key: 1 / self.holders[key].clamp_min(1)}, name, self.config)
            # The next version takes the place of the sums.
            updated[name] = torch.addcmul(current[name], total, inverse, value=-1.0, out=total)
        self.clear("sum")
        return updated


class FedBuff(Method):
    name: ClassVar[str] = "fedbuff"
    title: ClassVar[str] = "FedBuff (full)"
    settings_type: ClassVar[type[Settings]] = FedBuffSettings
    over_budget: ClassVar[bool] = True
    settings: FedBuffSettings

    @property
    def buffer(self) -> int:
        """K."""
        share = Trigger.semi_asynchronous(self.context.schedule.mu, t_clk=0.0)
        return self.settings.buffer or share.threshold(len(self.context.members))

    def rules(self) -> tuple[Trigger, Redispatch]:
        return Trigger.buffered(self.buffer), "at-once"

    def assign(self, call: Call) -> Assignment:
        return Assignment(SubmodelSpec.full(self.context.config), self.context.local(call.member))

    def merge(self) -> Merge:
        return BufferMerge(self.context.config)
