"""FedMeZO (Ling et al., KDD 2024): federated averaging of devices that train by forward passes alone.

Section 3 of the paper: every device takes zeroth-order steps (MeZO, see `steps`), the server averages the
parameters. No gradient, no optimiser state, no stored graph: a device holds its weights and the activations of one
block. Even so the full model's weights do not fit a small device (ViT-Tiny: 103 MB, where a device of R = 1/16 trains
in 38 MB), so it runs on FedRolex's submodels.

From the paper and its public code: ε = 1e-3; the server averages tensors, not seeds; a personal learning rate as an
option (`personal`; there 5e-6 next to η = 1e-5, so a half). `wire = "seeds"` is FedKSeed's and DeComFL's idea, 12 bytes
a step, and gives the same model but for rounding. Ours: as many steps as E epochs have batches, so that all methods
see equally much data (theirs: 30 steps of one sample, 500 rounds); the learning rate is the recipe's times `lr_factor`,
because the noise of a zeroth-order step grows with the number of weights (theirs, 1e-5, is for fine-tuning a large
model; 150 steps from nothing on digits went best with 3e-4 to 1e-3 at R = 1, 1/4 and 1/16); the recipe's cosine
instead of a constant rate; training-time rescaling, as for all submodels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field

from cos2p.methods import (
    Assignment,
    Call,
    Contribution,
    FedRolex,
    FedRolexSettings,
    Forms,
    Merge,
    Order,
    RunContext,
    SegmentMerge,
    Settings,
    Trainer,
    Update,
    Weights,
    shared,
    trained_shapes,
)
from cos2p_rivals.fedmezo.device import MezoSettings, MezoTrainer, StepSettings
from cos2p_rivals.fedmezo.steps import replay


class FedMeZOSettings(FedRolexSettings, StepSettings):
    lr_factor: float = Field(default=0.2, gt=0, description="η is the recipe's learning rate times this.")
    steps: int = Field(default=0, ge=0, description="Steps of a task; 0: as many as E epochs have batches.")
    personal: float = Field(
        default=0.0, ge=0, lt=1, description="How much more η a device of high loss gets; 0: none, 0.5: the paper's."
    )


class FedMeZO(FedRolex):
    name: ClassVar[str] = "fedmezo"
    title: ClassVar[str] = "FedMeZO"
    settings_type: ClassVar[type[Settings]] = FedMeZOSettings
    trainers: ClassVar[tuple[type[Trainer], ...]] = (MezoTrainer,)
    embeddings = ("rows", "whole")
    settings: FedMeZOSettings
    forms: ClassVar[Forms] = {}

    def __init__(self, settings: Settings, context: RunContext) -> None:
        super().__init__(settings, context)
        self.losses: dict[str, float] = {}
        """Each client's loss in its last task."""

    def assign(self, call: Call) -> Assignment:
        settings, member = self.settings, call.member
        # what comes as seeds the server replays, step by step: as many as a device's word is good for
        samples = self.context.credited(member) if settings.wire == "seeds" else member.samples
        local = MezoSettings.model_validate(
            {
                **self.local(member).model_dump(),
                "steps": settings.steps or self.context.training.epochs * -(-samples // member.batch),
                **shared(settings, StepSettings),
            }
        )
        factor = settings.lr_factor * (1 + settings.personal * self.standing(member.name))
        return Assignment(self.spec(member.name, call.version), local, MezoTrainer, lr_factor=factor)

    def standing(self, client: str) -> float:
        """How far a client's last loss is above the mean of all, from −1 to 1; 0 while nothing is known."""
        if client not in self.losses:
            return 0.0
        mean = sum(self.losses.values()) / len(self.losses)
        widest = max(abs(loss - mean) for loss in self.losses.values())
        return (self.losses[client] - mean) / widest if widest else 0.0

    def merge(self) -> Merge:
        return ReplayMerge(self.context.config, self.settings.weights)

    def accepted(self, order: Order, update: Update) -> None:
        loss = update.report.get("loss")
        if isinstance(loss, int | float) and math.isfinite(loss):  # it is what the client says
            self.losses[update.client] = float(loss)

    def state(self) -> tuple[dict[str, Any], Weights]:
        return {"losses": self.losses}, {}

    def load_state(self, values: Mapping[str, Any], tensors: Weights) -> None:
        self.losses = dict(values["losses"])


class ReplayMerge(SegmentMerge):
    """Selective aggregation; updates that came as seeds are played back first."""

    def decode(self, item: Contribution, current: Weights) -> Contribution:
        if "seeds" not in item.extras:
            return item
        decay = float(item.extras["decay"])
        start = item.given(self.config) if decay else {}
        shapes = trained_shapes(self.config, item.spec)
        return replace(item, delta=replay(shapes, item.extras["seeds"], item.extras["scales"], decay, start))
