"""Settings of heads that may start in closed form; `closed_heads` is what follows from them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cos2p.aggregation.closed_form import HeadForm
from cos2p.settings import Settings


class HeadStart(Settings):
    """Where heads begin."""

    start: Literal["fresh", "means", "discriminant"] = Field(
        default="fresh",
        description="`fresh`: as the model came; `means`, `discriminant`: in closed form from sums of features by "
        "class, which each device tells in its first task (the server learns its class counts and mean features).",
    )
    ridge: float = Field(
        default=0.3,
        gt=0,
        description="`discriminant`: added to the scatter, as a share of its mean variance, 0.03 to 1.",
    )

    @property
    def start_form(self) -> HeadForm | None:
        return None if self.start == "fresh" else self.start


class ExitStart(HeadStart):
    """Where the exits begin, and where the top one ends."""

    finish: Literal["trained", "means", "discriminant"] = Field(
        default="trained",
        description="Where the top exit ends: as it was `trained`, or once more in closed form, from sums that every "
        "device tells in the last round (the two last rounds then wait for everybody).",
    )

    @property
    def finish_form(self) -> HeadForm | None:
        return None if self.finish == "trained" else self.finish
