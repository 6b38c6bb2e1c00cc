"""HeteroFL (Diao, Ding, Tarokh, ICLR 2021): the leading part of every dimension, the same in every round.

FedRolex's official cut without the roll; see `fedrolex_official` for what is taken from the official code. What the
largest device does not hold, nobody ever trains. As in the paper, whose global model has the largest device's size,
that tail is not part of the model that is evaluated and saved: it is the largest device's, scaled as it was trained.
"""

from __future__ import annotations

from typing import ClassVar

from cos2p.aggregation.merge import Merge
from cos2p.methods.base import Assignment, Call, Forms, Method, RunContext
from cos2p.methods.heterofl.cut import ScaledCut, fitted_config, fold_scaler, scaled_cut, scaled_rate, take_scaled
from cos2p.methods.heterofl.device import ScaledTask, ScaledTrainer
from cos2p.methods.heterofl.merge import ScaledMerge
from cos2p.methods.widths import WITHOUT_SCALER, AveragingSettings
from cos2p.models.layout import Weights
from cos2p.models.spec import SubmodelSpec
from cos2p.settings import Settings
from cos2p.training.embeddings import Embeddings
from cos2p.training.trainer import Trainer

Shift = tuple[int, int, int]
"""How far the windows over residual width, heads' insides and units have moved."""


class ScaledMethod(Method):
    """A share of every dimension; subclasses say where it lies."""

    settings_type: ClassVar[type[Settings]] = AveragingSettings
    trainers: ClassVar[tuple[type[Trainer], ...]] = (ScaledTrainer,)
    embeddings: ClassVar[tuple[Embeddings, ...]] = ("whole",)
    settings: AveragingSettings
    forms: ClassVar[Forms] = WITHOUT_SCALER

    def __init__(self, settings: Settings, context: RunContext) -> None:
        super().__init__(settings, context)
        self.rates = {name: scaled_rate(context.config, member.rate) for name, member in context.members.items()}
        """r of each client."""

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
