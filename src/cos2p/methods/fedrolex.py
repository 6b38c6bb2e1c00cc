"""FedRolex (Alam et al., NeurIPS 2022) on heads and units: a window over the width rolls on from round to round.

Section 3 of the paper (rolling extraction): in round q every device takes the segments {s(q), s(q)+1, …} modulo their
number, as many as its budget allows. All devices share s(q), so the windows of small devices lie inside those of large
ones. The server averages over the holders of each segment (its Equation 2, SA with equal weights).

This variant cuts the same segments as every other method here (heads and MLP units; residual width stays). The
official code cuts the residual width and the inside of the heads instead: that is `fedrolex-official`.

From the official code: one window for all devices, average with equal weights, training-time scaling ("Scaler").
Ours: the step. Officially the window moves by one a round, which in a run of some ten rounds leaves most of the model
untouched (128 of 2048 units over 120 rounds: 247 units seen). Here it moves by the smallest device's window, so that
even this device sees all segments equally often; `step = "official"` keeps the one. A block that the smallest device
has no head for in a round does not move in that round: with as many blocks as heads, turning both at the same pace
would show it the same half of the heads for ever. Not taken over: gradient clipping and masked cross entropy, so that
all methods minimise the same loss with the same optimiser; `training.label_skew` does for all what the masking does.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from cos2p.methods.base import Assignment, Call, Forms
from cos2p.methods.widths import WITHOUT_SCALER, AveragingMethod, AveragingSettings, rolling, width_spec
from cos2p.models.spec import SubmodelSpec
from cos2p.settings import Settings
from cos2p.submodel.rates import spread

Step = Literal["window", "official"]


class FedRolexSettings(AveragingSettings):
    step: Step = Field(
        default="window", description="How far a round moves on: `window`, the smallest device's; `official`: by one."
    )


class FedRolex(AveragingMethod):
    name: ClassVar[str] = "fedrolex"
    title: ClassVar[str] = "FedRolex"
    settings_type: ClassVar[type[Settings]] = FedRolexSettings
    settings: FedRolexSettings
    forms: ClassVar[Forms] = {**WITHOUT_SCALER, "step of one": ("method.step=official",)}

    def assign(self, call: Call) -> Assignment:
        return Assignment(self.spec(call.member.name, call.version), self.local(call.member))

    def spec(self, client: str, round: int) -> SubmodelSpec:
        """The client's submodel in a round; the version at dispatch is the round, for late tasks too."""
        config, budget = self.context.config, self.budgets[client]
        heads = self._roll(config.groups, budget.heads, [b.heads for b in self.budgets.values()], round)
        units = self._roll(config.mlp, budget.units, [b.units for b in self.budgets.values()], round)
        return width_spec(heads, units)

    def _roll(self, segments: int, total: int, totals: list[int], round: int) -> list[list[int]]:
        blocks = self.context.config.depth
        smallest = min((count for count in totals if count), default=0)
        starts = window_starts(smallest, blocks, round, self.settings.step)
        counts = spread(total, blocks, rotation=round)
        return [rolling(segments, count, start) for count, start in zip(counts, starts, strict=True)]


def window_starts(total: int, blocks: int, rounds: int, step: Step = "window") -> list[int]:
    """Where each block's window stands after `rounds` rounds in which `total` segments were dealt to the blocks.

    `window`: behind all it was dealt so far. `official`: one further for each round in which it was dealt any.

    >>> window_starts(16, 8, 3), window_starts(4, 8, 8), window_starts(16, 8, 3, "official")
    ([6, 6, 6, 6, 6, 6, 6, 6], [4, 4, 4, 4, 4, 4, 4, 4], [3, 3, 3, 3, 3, 3, 3, 3])
    """
    base, extra = divmod(total, blocks)
    whole_turns, rest = divmod(rounds, blocks)
    starts = []
    for block in range(blocks):
        in_rest = sum(spread(extra, blocks, rotation=q)[block] for q in range(rest))
        remainders = whole_turns * extra + in_rest
        if step == "window":
            starts.append(base * rounds + remainders)
        else:
            starts.append(rounds if base else remainders)
    return starts
