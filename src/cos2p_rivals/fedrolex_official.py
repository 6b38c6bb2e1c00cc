"""FedRolex as its official code cuts (Alam et al., NeurIPS 2022), and HeteroFL (Diao et al., ICLR 2021).

Both give a device a share r of *every* dimension: the residual width, the inside of each head, and the MLP units
(see `heterofl.cut`). HeteroFL keeps the leading part for ever, so that only large devices train the tail. FedRolex
rolls it: in round q the part of a dimension of size D is roll(arange(D), q mod D)[:⌈rD⌉], the same q for all devices
and layers, so that residual sums align and small parts lie inside large ones. The server averages every scalar over
its holders with equal weights.

Parameters fall with r², so r is about √R_n: the largest r whose heads and units cost at most R_n of the full model's.

From the official code: the index lists (q, k, v rows are rolled over all heads, then each head keeps its first ones;
a window may straddle two of the full model's heads), softmax scaled by the small head's size, the Scaler, averaging.
(The published transformer server then reloads the old parameters; the behaviour of its ResNet server is what is here.)
Ours: the step. Officially it is one entry a round in runs of thousands; over 60 rounds a quarter of 256 units would
then show 123 of them, and the others stay at their first values. So by default the roll makes `turns` turns around
each dimension in a run, however short; `step = "official"` keeps the one. Not taken over: masked cross entropy over a
device's own labels and gradient clipping, so that all methods minimise the same loss with the same optimiser
(`training.label_skew` does for all what the masking does); batch statistics do not occur in a transformer.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from cos2p.methods import AveragingSettings, Forms, Settings
from cos2p_rivals.heterofl.cut import around
from cos2p_rivals.heterofl.method import ScaledMethod, Shift


class FedRolexOfficialSettings(AveragingSettings):
    step: Literal["turns", "official"] = Field(
        default="turns", description="How far a round moves on: so that the run makes `turns` turns; or by one."
    )
    turns: float = Field(default=5.0, gt=0, description="Turns around each dimension in the whole run, 1 to 10.")


class FedRolexOfficial(ScaledMethod):
    name: ClassVar[str] = "fedrolex-official"
    title: ClassVar[str] = "FedRolex (official slices)"
    settings_type: ClassVar[type[Settings]] = FedRolexOfficialSettings
    settings: FedRolexOfficialSettings
    forms: ClassVar[Forms] = {**ScaledMethod.forms, "step of one": ("method.step=official",)}

    def shift(self, round: int) -> Shift:
        residual, inner, units = (round * self._step(size) for size in around(self.context.config))
        return residual, inner, units

    def _step(self, size: int) -> int:
        """Entries a round, over a dimension of this size."""
        if self.settings.step == "official":
            return 1
        rounds = self.context.expected_tasks()
        return max(1, int(self.settings.turns * size / rounds + 0.5))
