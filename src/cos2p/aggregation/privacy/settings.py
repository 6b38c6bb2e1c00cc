"""The `[privacy]` table of a recipe."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from cos2p.settings import Settings


class PrivacySettings(Settings):
    """Differential privacy of a device's data; off unless `noise` says where it is added."""

    noise: Literal["off", "central", "local"] = Field(
        default="off",
        description="off: none of this table holds. central: the server adds noise to each round's sum, and sees the "
        "clipped updates themselves. local: every device adds it before it sends; far more noise for the same ε.",
    )
    clip: float = Field(
        default=1.0, gt=0, description="C: largest L2 norm of a whole update, 0.1 to 10; longer ones are shortened."
    )
    multiplier: float | None = Field(
        default=None,
        ge=0,
        description="σ: standard deviation of the noise in units of C. Empty: so that `epsilon` lasts for "
        "`schedule.rounds` updates of a device, or for its mean share of `schedule.updates`. 0: clipping alone, ε is "
        "infinite.",
    )
    epsilon: float | None = Field(
        default=None,
        gt=0,
        description="The budget of each device for the whole run, 1 to 10: a device that has spent it gets no more "
        "tasks, and when none is left the run ends. Empty: no budget, ε is only counted.",
    )
    delta: float = Field(default=1e-5, gt=0, lt=1, description="δ: well below 1 over the number of devices.")

    @model_validator(mode="after")
    def _consistent(self) -> PrivacySettings:
        if self.noise == "off":
            return self
        if self.multiplier is None and self.epsilon is None:
            raise ValueError("give `multiplier` (σ) or `epsilon` (the budget that σ follows from)")
        if self.multiplier == 0 and self.epsilon is not None:
            raise ValueError("multiplier 0 adds no noise, so no finite `epsilon` holds; leave one of them out")
        return self

    @property
    def on(self) -> bool:
        return self.noise != "off"
