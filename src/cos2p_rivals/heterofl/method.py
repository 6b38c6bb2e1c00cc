"""HeteroFL (Diao, Ding, Tarokh, ICLR 2021): the leading part of every dimension, the same in every round.

FedRolex's official cut without the roll; see `fedrolex_official` for what is taken from the official code. What the
largest device does not hold, nobody ever trains. As in the paper, whose global model has the largest device's size,
that tail is not part of the model that is evaluated and saved: it is the largest device's, scaled as it was trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from cos2p import Method, ModelConfig, SubmodelSpec
from cos2p.methods import (
    Assignment,
    AveragingSettings,
    Call,
    Contribution,
    Forms,
    Member,
    Merge,
    Part,
    RunContext,
    Settings,
    Trainer,
    Weights,
)
from cos2p_rivals.heterofl.cut import (
    ScaledCut,
    fitted_config,
    fold_scaler,
    least_rate,
    places,
    scaled_cut,
    scaled_rate,
    scaled_slices,
    take_scaled,
)
from cos2p_rivals.heterofl.device import ScaledTask, ScaledTrainer

Shift = tuple[int, int, int]
"""How far the windows over residual width, heads' insides and units have moved."""


class ScaledMethod(Method):
    """A share of every dimension; subclasses say where it lies."""

    settings_type: ClassVar[type[Settings]] = AveragingSettings
    trainers: ClassVar[tuple[type[Trainer], ...]] = (ScaledTrainer,)
    embeddings = ("whole",)
    sized_by_rate = False  # the residual width is cut too: tables, embeddings and all
    settings: AveragingSettings
    forms: ClassVar[Forms] = {"no scaler": ("method.rescale=false",)}

    def __init__(self, settings: Settings, context: RunContext) -> None:
        super().__init__(settings, context)
        self.rates = {name: scaled_rate(context.config, member.rate) for name, member in context.members.items()}
        """r of each client."""

    def parts(self, member: Member) -> Sequence[Part]:
        offered, least = super().parts(member), least_rate(self.context.config)
        return [part for part in offered if part.size >= least] if member.auto else offered

    def shift(self, round: int) -> Shift:
        raise NotImplementedError

    def part(self, client: str, round: int) -> ScaledCut:
        return scaled_cut(self.context.config, self.rates[client], self.shift(round))

    def assign(self, call: Call) -> Assignment:
        local = self.context.local(call.member, rescale=self.settings.rescale)
        task = ScaledTask(local=local, thin=self.part(call.member.name, call.version))
        return Assignment(SubmodelSpec.full(self.context.config), task, ScaledTrainer)

    def merge(self) -> Merge:
        return ScaledMerge(self.context.config, self.settings.weights)


class HeteroFl(ScaledMethod):
    name: ClassVar[str] = "heterofl"
    title: ClassVar[str] = "HeteroFL"
    own_config = staticmethod(fitted_config)

    def shift(self, round: int) -> Shift:
        return 0, 0, 0

    def evaluated_weights(self, weights: Weights) -> Weights:
        largest = max(self.rates.values())
        if largest == 1.0:
            return weights
        config = self.context.config
        held = take_scaled(weights, config, scaled_cut(config, largest), all_exits=True)
        return fold_scaler(held, largest) if self.settings.rescale else held


# Averaging scaled submodels: every scalar over the updates that hold it.
#
# Segments are of no use here, since a device holds a part of every head; so sums and weights are kept per scalar.


class ScaledMerge(Merge):
    """w ← w − Σ p_n Δ_n / Σ p_n over the holders of each scalar; what nobody holds stays bitwise.

    `holders`, of each head and unit: how many updates of this round held its least held scalar.
    """

    groups: ClassVar[tuple[str, ...]] = ("sum", "weight", "count", "holders")
    sum: Weights
    weight: Weights
    count: Weights

    def __init__(self, config: ModelConfig, weights: Literal["uniform", "samples"] = "uniform") -> None:
        super().__init__(config)
        self.weights = weights

    def places(self, item: Contribution) -> Mapping[str, tuple[Tensor | slice, ...]]:
        cuts = scaled_slices(self.config, ScaledCut.model_validate(item.settings["thin"]))
        return {name: places(cuts[name]) for name in item.delta if name in cuts}

    def weigh(self, item: Contribution, current: Weights) -> dict[str, float] | None:
        return dict.fromkeys(("heads", "units", "shared"), self._weight(item))

    def _weight(self, item: Contribution) -> float:
        return 1.0 if self.weights == "uniform" else float(item.samples)

    def add(self, item: Contribution, current: Weights) -> dict[str, float]:
        weight = self._weight(item)
        part = ScaledCut.model_validate(item.settings["thin"])
        for name, cuts in scaled_slices(self.config, part).items():
            if name not in self.sum:
                for group in (self.sum, self.weight, self.count):
                    group[name] = torch.zeros_like(current[name])
            at = places(cuts)
            self.sum[name][at] += weight * item.delta[name]
            self.weight[name][at] += weight
            self.count[name][at] += 1
        self._note_holders()
        return dict.fromkeys(("heads", "units", "shared"), weight)

    def _note_holders(self) -> None:
        heads = (self.config.groups, -1)
        for block in range(self.config.depth):
            rows = self.count[f"blocks.{block}.q.weight"].amin(1)
            self.holders[f"heads.{block}"] = rows.view(heads).amin(1)
            self.holders[f"units.{block}"] = self.count[f"blocks.{block}.fc1.weight"].amin(1)

    def apply(self, current: Weights) -> Weights:
        updated = dict(current)
        for name, total in self.sum.items():
            weight = self.weight[name]
            updated[name] = current[name] - total / torch.where(weight > 0, weight, 1.0)
        self.clear("sum", "weight", "count")
        return updated
