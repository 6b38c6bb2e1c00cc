"""Settings of the server: the `[schedule]`, `[privacy]` and `[robust]` tables of a recipe."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from cos2p.aggregation.triggers import ceil_share
from cos2p.settings import Settings

Redispatch = Literal["at-once", "at-aggregation"]


def share_of(wanted: float, here: int) -> int:
    """`clients_per_round` as a number: it counts clients, or below 1 it is a share of those here.

    >>> share_of(5, 8), share_of(0.07, 100), share_of(0.01, 8)
    (5, 7, 1)
    """
    return int(wanted) if wanted >= 1 else ceil_share(wanted, here)


class ScheduleSettings(Settings):
    """When the server aggregates and when the run ends."""

    rounds: int | None = Field(default=None, ge=1, description="Q: aggregations. Empty: `updates` decides alone.")
    updates: int | None = Field(
        default=None, ge=1, description="Client updates in all: the fair measure between methods. Empty: no limit."
    )
    virtual_seconds: float | None = Field(
        default=None,
        gt=0,
        description="Virtual seconds after which training is over; a run that ends with a closed-form head finishes "
        "what is at work and reports. Empty: no limit.",
    )
    mu: float = Field(default=0.5, gt=0, le=1, description="μ: share of the devices that must have reported.")
    t_clk: float = Field(default=60.0, ge=0, description="T_clk: seconds the server then waits for more.")
    redispatch: Redispatch = Field(
        default="at-aggregation",
        description="When a device that reported gets its next task (semi-asynchronous methods): with the next version "
        "(Algorithm 2 of the paper), or `at-once`: nobody idles, but what it trains is stale.",
    )
    clients_per_round: float | None = Field(
        default=None,
        gt=0,
        description="How many devices take part in a round: a whole number, or below 1 a share of those present. With "
        "`at-once` and asynchronous methods: how many are at work at any time. Empty: all. μ is then a share of these.",
    )
    task_timeout: float | None = Field(
        default=None,
        gt=0,
        description="Seconds after which a device is not waited for. Empty: a simulation waits for everybody, a real "
        "fleet for twenty times what most devices take, and five minutes at least.",
    )
    max_update_rms: float | None = Field(
        default=None,
        gt=0,
        description="Refuse updates with a larger root mean square, or with a larger change of any one weight. Empty: "
        "25 times the root mean square of the model's weights, or of a task's learning rate × steps if that is more.",
    )
    evaluate_every: int = Field(default=1, ge=1, description="Rounds between evaluations of the server's model.")
    evaluate_samples: int = Field(
        default=0,
        ge=0,
        description="Validation and test samples, of each so many, used during the run: drawn by the seed, in "
        "proportion to the classes. The last evaluation uses all. 0: all.",
    )
    patience: int = Field(
        default=0, ge=0, description="Training is over after this many evaluations without a better one; 0: never."
    )

    def share_done(self, version: int, merged: int, statistics_updates: int = 0) -> float:
        """The share of a run that is over, by rounds or by updates, whichever is larger.

        `statistics_updates` of its updates report statistics and train nothing.

        >>> ScheduleSettings(rounds=8).share_done(2, 99), ScheduleSettings(updates=10).share_done(2, 4, 2)
        (0.25, 0.5)
        """
        shares = [version / self.rounds] if self.rounds else []
        if self.updates:
            shares.append(merged / max(1, self.updates - statistics_updates))
        return min(1.0, max(shares))

    def taking_part(self, devices: int) -> int:
        """How many of so many devices take part in a round."""
        return devices if self.clients_per_round is None else min(devices, share_of(self.clients_per_round, devices))

    @model_validator(mode="after")
    def _consistent(self) -> ScheduleSettings:
        if self.rounds is None and self.updates is None:
            raise ValueError("give `rounds` or `updates` (or both): the run needs an end")
        wanted = self.clients_per_round
        if wanted is not None and wanted > 1 and wanted != int(wanted):
            raise ValueError(f"clients_per_round is {wanted}; it is a whole number, or a share between 0 and 1")
        return self


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


Combine = Literal["mean", "median", "trimmed", "geometric"]
Suspicion = Literal["off", "weigh", "exclude"]

STRIKES = 5
"""Updates in a row that count for nothing until their device is excluded."""


class RobustSettings(Settings):
    """The server's answer to devices that lie."""

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
        description="`weigh`: a device whose updates keep pointing elsewhere than the fleet's, are the same whatever "
        "model it gets, or are more than twice as long as the bound allows, counts less, down to nothing; `exclude`: "
        "one whose updates counted for nothing five times in a row gets no more tasks in this run.",
    )
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
