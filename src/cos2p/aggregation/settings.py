"""The `[schedule]` table of a recipe: when the server aggregates and when the run ends."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from cos2p.aggregation.triggers import ceil_share
from cos2p.settings import Settings

Redispatch = Literal["at-once", "at-aggregation"]

Choice = Literal["uniform", "coverage", "speed"]
"""Who is chosen where not all take part: anyone, who holds what was trained least, or who is quickest."""


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
    max_in_flight: int | None = Field(default=None, ge=1, description="Most tasks that may be out at once. Empty: any.")
    choose: Choice = Field(
        default="uniform",
        description="Who takes part where not all do: anyone (`uniform`); of a few drawn ones whose blocks are trained "
        "least (`coverage`), or who is quickest (`speed`).",
    )
    task_timeout: float | None = Field(
        default=None, gt=0, description="Seconds after which a device is not waited for."
    )
    max_staleness: int | None = Field(default=None, ge=0, description="Drop updates older than this. Empty: keep all.")
    max_failures: int = Field(
        default=5,
        ge=1,
        description="Tasks in a row that may fail or be refused before their device gets no more until it joins anew.",
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
