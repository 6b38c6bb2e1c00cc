"""HeteroFL (Diao, Ding, Tarokh, ICLR 2021): the leading part of every dimension, the same in every round.

FedRolex's official cut without the roll; see `fedrolex_official` for what is taken from the official code. What the
largest device does not hold, nobody ever trains. As in the paper, whose global model has the largest device's size,
that tail is not part of the model that is evaluated and saved: it is the largest device's, scaled as it was trained.
"""

from __future__ import annotations

from typing import ClassVar

from cos2p.methods.fedrolex_official import Shift, ThinMethod
from cos2p.models.layout import Weights
from cos2p.submodel.thin import fold_scaler, take_thin, thin


class HeteroFl(ThinMethod):
    name: ClassVar[str] = "heterofl"
    title: ClassVar[str] = "HeteroFL"

    def shift(self, round: int) -> Shift:
        return 0, 0, 0

    def evaluated_weights(self, weights: Weights) -> Weights:
        largest = max(self.rates.values())
        if largest == 1.0:
            return weights
        config = self.context.config
        held = take_thin(weights, config, thin(config, largest), all_exits=True)
        return fold_scaler(held, largest) if self.settings.rescale else held
