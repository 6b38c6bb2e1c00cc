"""`Privacy`: the settings at work in one run, and what they do not go together with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch

from cos2p.aggregation.merge import Contribution, Merge, SegmentMerge
from cos2p.aggregation.privacy.account import Account, multiplier_for
from cos2p.aggregation.privacy.clipping import Draw, clipped
from cos2p.aggregation.settings import PrivacySettings, Redispatch, ScheduleSettings
from cos2p.aggregation.triggers import Trigger
from cos2p.errors import RecipeError
from cos2p.messages import Order
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.submodel.segments import expand, segment_key
from cos2p.training.trainer import SubmodelTrainer


def with_multiplier(settings: PrivacySettings, schedule: ScheduleSettings, devices: int) -> PrivacySettings:
    """The settings with σ in place: as given, or from the budget and how often a device is expected to take part.

    It follows from the recipe alone (`devices`: how many that names), so that server and devices find the same.
    """
    if not settings.on or settings.multiplier is not None:
        return settings
    assert settings.epsilon is not None, "one of the two is given, see PrivacySettings"
    expected = schedule.rounds
    if expected is None:
        assert schedule.updates is not None, "a schedule has rounds or updates"
        expected = max(1, -(-schedule.updates // max(1, devices)))
    return settings.model_copy(update={"multiplier": multiplier_for(settings.epsilon, settings.delta, expected)})


def holders_per_round(trigger: Trigger, schedule: ScheduleSettings, rates: list[float]) -> float:
    """How many updates of a round hold a segment, on average: at least 1."""
    wanted = schedule.clients_per_round
    present = len(rates) if wanted is None else wanted if wanted >= 1 else wanted * len(rates)
    return max(1.0, trigger.threshold(round(present)) * sum(rates) / max(1, len(rates)))


def check_rounds(settings: PrivacySettings, trigger: Trigger, redispatch: Redispatch) -> None:
    """RecipeError if devices would regularly have several updates in one sum: two of them cost as much as four."""
    if settings.noise == "central" and redispatch == "at-once" and trigger.count != 1:
        raise RecipeError(
            "privacy.noise: with schedule.redispatch 'at-once' a quick device has several updates in one round's sum, "
            "where two cost as much privacy as four; set it to 'at-aggregation'"
        )


NOT_PLAIN = (
    "privacy.noise: this method's devices send more than an update, or its server weighs updates by what is in them; "
    "methods that average plain updates can be private: cos2p, cos2p-sync and cos2p-async without exits in closed form "
    "and without factors (method.factors.below = 0), fedavg, fedrolex"
)


class Privacy:
    """The server's half."""

    def __init__(self, settings: PrivacySettings, holders: float, draw: Draw) -> None:
        """`holders`: of a segment in a round on average: the denominator."""
        assert settings.multiplier is not None, "see with_multiplier"
        self.settings, self.draw = settings, draw
        self.denominator = holders
        self.central = settings.noise == "central"
        self.deviation = settings.multiplier * settings.clip
        """Deviation of the noise: on a round's sum, or on every update."""
        self.account = Account(settings.multiplier, settings.delta, settings.epsilon, by_round=self.central)

    def merge(self, config: ModelConfig, own: Merge) -> PrivateMerge:
        """In place of the method's own. RecipeError if that one lets an update count in ways that no noise covers."""
        if type(own) is not SegmentMerge:
            raise RecipeError(NOT_PLAIN)
        if own.rule != "uniform":
            raise RecipeError(
                f"privacy.noise: updates are weighed by {own.rule!r}, which depends on a device's data, so that "
                "nothing bounds its influence; set method.weighting (or method.weights) to 'uniform'"
            )
        noise = self.deviation if self.central else 0.0
        return PrivateMerge(config, own, self.denominator, self.draw, self.settings.clip, noise, clip_here=self.central)

    def largest_rms(self, limit: float) -> float:
        """The largest root mean square that is let in: an update that carries its own noise is as large as that."""
        return limit if self.central else max(limit, 6 * self.deviation)

    def received(self, client: str) -> None:
        """An update is in the server's hands. One that carries its own noise has cost its device from here on, whether
        it is used or not."""
        if not self.central:
            self.account.took_part(client)

    def merged(self, client: str) -> None:
        if self.central:
            self.account.took_part(client)

    def state(self) -> dict[str, Any]:
        return {"account": self.account.to_dict(), "denominator": self.denominator}

    def load_state(self, values: Mapping[str, Any]) -> None:
        self.account.load_dict(values["account"])
        self.denominator = float(values["denominator"])


def check_covered(order: Order, config: ModelConfig, embeddings: str) -> None:
    """RecipeError if a task would make a device send more than an update, or choose by its data what it trains: no
    noise covers that."""
    if order.trainer != SubmodelTrainer.name:
        raise RecipeError(NOT_PLAIN)
    if order.quotas is not None:
        raise RecipeError(
            "privacy.noise: masks that a device trains disclose its data by which segments it keeps; set "
            "method.masks.heads and method.masks.units to 'fixed' or 'random'"
        )
    if config.family != "vit" and embeddings != "whole":
        raise RecipeError(
            f"privacy.noise: with training.embeddings {embeddings!r} a device names the tokens that occur in its "
            "data; set it to 'whole'"
        )


# The server's half: sums of clipped updates, noise, and a denominator that nobody's data or presence can move.


class PrivateMerge(SegmentMerge):
    """w ← w − (Σ_n s(τ_n) clip(Δ_n) + noise) / D on every segment that somebody held in the round.

    An update moves the sum by at most C, whatever is in it: its weight is at most 1 and does not depend on it.
    """

    groups: ClassVar[tuple[str, ...]] = (*SegmentMerge.groups, "rounds")
    rounds: Weights
    """One number: rounds closed so far, so that each draws noise of its own."""

    def __init__(
        self,
        config: ModelConfig,
        like: SegmentMerge,
        denominator: float,
        draw: Draw,
        clip: float,
        deviation: float,
        *,
        clip_here: bool,
    ) -> None:
        """`like` is the method's own merge, for what stale updates are worth. `deviation` is of the noise on each
        scalar of a sum; 0: none, the devices added theirs and cannot be clipped any more."""
        super().__init__(config, "uniform", like.step_exponent)
        self.denominator, self.draw, self.clip, self.deviation = denominator, draw, clip, deviation
        self.clip_here = clip_here

    def add(self, item: Contribution, current: Weights) -> dict[str, float]:
        delta = clipped(item.delta, self.clip) if self.clip_here else item.delta
        return super().add(replace(item, delta=delta), current)

    def apply(self, current: Weights) -> Weights:
        updated, closed = dict(current), int(self.rounds.get("closed", torch.zeros(())))
        rng = self.draw("private round", closed)
        for name, total in sorted(self.sum.items()):
            if self.deviation:
                total = total + self.deviation * torch.randn(total.shape, generator=rng)
            key = segment_key(self.config, name)
            held = (self.holders[key] > 0).to(total.dtype) / self.denominator
            updated[name] = current[name] - total * expand({key: held}, name, self.config)
        self.rounds = {"closed": torch.tensor(float(closed + 1))}
        self.clear("sum", "weight")
        return updated
