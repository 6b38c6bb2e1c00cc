"""The `[robust]` table of a recipe: what the server does about devices that lie."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cos2p.settings import Settings

Combine = Literal["mean", "median", "trimmed", "geometric"]
Suspicion = Literal["off", "weigh", "exclude"]


class RobustSettings(Settings):
    """What the server does about devices that lie."""

    bound: float = Field(
        default=3.0,
        ge=0,
        description="Largest step of a segment, as a multiple of the median root mean square of the fleet's recent "
        "updates of that kind of segment; longer ones are shortened to it. 0: none.",
    )
    combine: Combine = Field(
        default="mean",
        description="How the updates of a round become one step: `mean`, weighted as the method says; where three or "
        "more hold a scalar, their `median`, `trimmed` mean (without a quarter at each end) or `geometric` median (row "
        "by row). All but `mean` keep a round's updates in memory.",
    )
    suspicion: Suspicion = Field(
        default="exclude",
        description="`weigh`: a device whose updates keep pointing elsewhere than the fleet's, or are more than twice "
        "as long as the bound allows, counts less, down to nothing; `exclude`: one whose updates counted for nothing "
        "`patience` times in a row gets no more tasks in this run.",
    )
    patience: int = Field(default=5, ge=2, description="Updates in a row that count for nothing until it is excluded.")
    samples: float = Field(
        default=10.0,
        ge=0,
        description="Most samples of a device that count where updates are weighed by samples, as a multiple of what "
        "the fleet's devices have in the median: how many it has is what it says. 1 to 2 if devices may lie. 0: all.",
    )

    @property
    def holds(self) -> bool:
        """Whether a round's updates are kept until it closes, or take too much memory."""
        return self.combine != "mean" or self.suspicion != "off"
