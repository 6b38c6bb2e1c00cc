"""FedAvg + PLATON and FedAsync + PLATON: each device keeps the segments its own data are most sensitive to.

PLATON (Zhang et al., ICML 2022) scores a weight by sensitivity times uncertainty, S = Ī·Ū (see `device`), and
keeps the best r of all weights, with r falling along a cubic from 1 to its final value (its Equation 9). Here a head or
a unit is scored as one, heads and units are ranked apart, over all blocks, and each device has scores of its own.

`budget = "hard"` (ours, since no device may hold the full model): r = R_n from the start. A segment a device has not
tried yet ranks first, so that it tries all of them once, block by block in turn; then the best N_H and N_U are taken
anew for every task. `budget = "faithful"`: r falls from 1 to R_n over the run as in the paper; large models on small
devices then need `fleet.enforce_memory = false`.

From the public code: β1, β2, ΔT = 10 steps, r0 = 1, the order of updates at a window's border, the cubic. Ours: the
warm-up as a share of the run; correction of bias in S, because here a segment's averages stand still while it is
not held, and without it the one held longest would win for that reason alone (`correct_bias = false` is the code's);
training-time rescaling, as for every width-only method. The server averages over holders, or mixes as FedAsync does
(without FedAsync's proximal term, whose copy of the model a small device cannot spare).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from cos2p.methods import (
    Assignment,
    AveragingMethod,
    AveragingSettings,
    Call,
    Merge,
    Order,
    Redispatch,
    RunContext,
    Settings,
    Trainer,
    Trigger,
    Update,
    Weights,
    WidthMethod,
    WidthSettings,
    cut,
    shared,
    torch_rng,
    width_spec,
)
from cos2p_rivals.fedasync import MixingMerge, MixingSettings
from cos2p_rivals.platon.device import PlatonTask, PlatonTrainer, SensitivitySettings
from cos2p_rivals.segment_reports import reported
from cos2p_rivals.segments import Kind, best_first, by_block, even_order


class PlatonSettings(WidthSettings, SensitivitySettings):
    budget: Literal["hard", "faithful"] = Field(
        default="hard", description="`hard`: R_n from the start; `faithful`: from the full model down to R_n."
    )
    initial: float = Field(default=0.1, ge=0, lt=1, description="`faithful`: share of the run at the full model.")
    final: float = Field(default=0.5, ge=0, lt=1, description="`faithful`: share of the run at R_n, at its end.")


class FedAvgPlatonSettings(PlatonSettings, AveragingSettings):
    """PLATON on the devices, averaging on the server."""


class FedAsyncPlatonSettings(PlatonSettings, MixingSettings):
    """PLATON on the devices, mixing on the server."""


def remaining_share(progress: float, final_share: float, initial: float, final: float) -> float:
    """r at `progress` through the run: 1 for its first part, R_n for its last, a cubic between.

    >>> [remaining_share(p, 0.25, initial=0.25, final=0.25) for p in (0.0, 0.25, 0.5, 0.75, 1.0)]
    [1.0, 1.0, 0.34375, 0.25, 0.25]
    """
    if progress >= 1 - final:
        return final_share
    if progress <= initial:
        return 1.0
    along = (progress - initial) / (1 - initial - final)
    return final_share + (1 - final_share) * (1 - along) ** 3


class Platon(WidthMethod):
    """The base of both: scores per client, and the choice of segments."""

    trainers: ClassVar[tuple[type[Trainer], ...]] = (PlatonTrainer,)
    updates_per_version: ClassVar[Literal["all", "one"]] = "all"
    settings: PlatonSettings

    def __init__(self, settings: Settings, context: RunContext) -> None:
        super().__init__(settings, context)
        self._segments: dict[Kind, int] = {"heads": context.config.groups, "units": context.config.mlp}
        self.scores: dict[str, Tensor] = {
            f"{name}/{kind}": torch.full((context.config.depth * count,), torch.inf)
            for name in context.members
            for kind, count in self._segments.items()
        }
        """By client and kind, over all blocks; infinite for a segment never tried."""

    def assign(self, call: Call) -> Assignment:
        member, settings = call.member, self.settings
        budget = self.budgets[member.name]
        if settings.budget == "faithful":
            progress = min(1.0, call.cycle / self.context.expected_tasks(self.updates_per_version))
            share = remaining_share(progress, member.rate, settings.initial, settings.final)
            budget = cut(self.context.config, share, ratio=0.0)
        spec = width_spec(
            self._choose(member.name, "heads", budget.heads), self._choose(member.name, "units", budget.units)
        )
        task = PlatonTask(local=self.local(member), **shared(settings, SensitivitySettings))
        return Assignment(spec, task, PlatonTrainer)

    def _choose(self, client: str, kind: Kind, count: int) -> list[list[int]]:
        """The best, untried ones first: in an order of the client's own that is spread evenly over the blocks."""
        depth, segments = self.context.config.depth, self._segments[kind]
        order = even_order(depth, segments, torch_rng(self.context.seed, "platon order", client, kind))
        return by_block(best_first(self.scores[f"{client}/{kind}"], order)[:count], depth, segments)

    def accepted(self, order: Order, update: Update) -> None:
        for kind in self._segments:
            numbers, values = reported(update, self.context.config, kind)
            self.scores[f"{update.client}/{kind}"][numbers] = values

    def state(self) -> tuple[dict[str, Any], Weights]:
        return {}, {name: scores.clone() for name, scores in self.scores.items()}

    def load_state(self, values: Mapping[str, Any], tensors: Weights) -> None:
        self.scores = {name: tensors.get(name, fresh).clone() for name, fresh in self.scores.items()}


class FedAvgPlaton(Platon, AveragingMethod):
    name: ClassVar[str] = "fedavg-platon"
    title: ClassVar[str] = "FedAvg+PLATON"
    settings_type: ClassVar[type[Settings]] = FedAvgPlatonSettings
    settings: FedAvgPlatonSettings


class FedAsyncPlaton(Platon):
    name: ClassVar[str] = "fedasync-platon"
    title: ClassVar[str] = "FedAsync+PLATON"
    settings_type: ClassVar[type[Settings]] = FedAsyncPlatonSettings
    settings: FedAsyncPlatonSettings
    updates_per_version: ClassVar[Literal["all", "one"]] = "one"

    def rules(self) -> tuple[Trigger, Redispatch]:
        return Trigger.asynchronous(), "at-once"

    def merge(self) -> Merge:
        return MixingMerge(self.context.config, self.settings.alpha, self.settings.exponent)
