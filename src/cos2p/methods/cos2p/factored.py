"""Low-rank factors in place of a small window: how a device of few bytes moves every block of a pretrained model.

A window of a sixteenth of the model moves few of its weights. In the bytes of such a window fit low-rank factors beside
the matrices of *all* blocks, streamed one by one as in `methods.adapters`. They live for one task: `down` is drawn anew
by the device from the run's seed, so that it need not travel, `up` begins at zero, and what comes back are both
factors. The server multiplies them out,

    Δ = s·Δ_upᵀ·(A⁰ − Δ_down)          start − end of W, since `up` began at zero

and merges that as it merges any window: segment by segment, beside the windows of larger devices, late work too. So
nothing is cut back to a rank on the server, the sum of many devices has as many directions as they drew, and the next
task begins at whole weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from cos2p.accelerator import place
from cos2p.aggregation.merge import Contribution, SegmentMerge
from cos2p.methods.adapters.device import AdapterSettings, LoraSettings, LoraTrainer
from cos2p.methods.adapters.factors import first_factor, is_adapter
from cos2p.methods.adapters.tasks import adapter_task
from cos2p.methods.base import Member, RunContext
from cos2p.methods.fitting import STORES, Store
from cos2p.models.layout import Weights
from cos2p.models.spec import SubmodelSpec

RANKS = (32, 16, 8, 4, 2)
"""What a device chooses from; below the smallest it trains its window."""


class FactorSettings(AdapterSettings):
    """Devices of few bytes: low-rank factors of all blocks instead of a window of weights."""

    below: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Devices of a smaller rate than this train factors, if some fit into the bytes of their window; "
        "0: nobody does.",
    )
    rank: int = Field(default=32, ge=2, description="Largest rank; a device takes what fits of 32, 16, 8, 4, 2.")
    lr_factor: float = Field(
        default=1.0, gt=0, description="η of factors is the recipe's, which is for weights, times this; 1 to 10."
    )


class FactoredSettings(LoraSettings):
    """One task."""

    draw: int = Field(
        default=0, ge=0, description="Which of the device's draws `down` begins with; another every task."
    )


Size = tuple[int, Store]
"""Of a task: its rank, and where the features of what is frozen below are kept."""


def sizes(largest: int) -> Iterator[Size]:
    """The largest first, and of those with the same rank the quicker."""
    return ((rank, store) for rank in RANKS if rank <= largest for store in STORES)


def factored_task(
    context: RunContext, member: Member, factors: FactorSettings, first: int, size: Size, draw: int
) -> tuple[SubmodelSpec, FactoredSettings]:
    """Factors of all blocks from `first` on."""
    rank, store = size
    spec, lora = adapter_task(context, member, rank, first, tuple(range(first, context.config.depth)), store, factors)
    return spec, FactoredSettings.model_validate({**lora.model_dump(), "draw": draw})


class FactoredTrainer(LoraTrainer):
    """LoRA for one task: nothing of the factors comes, both go back."""

    name: ClassVar[str] = "factored"
    settings_type = FactoredSettings
    settings: FactoredSettings

    def sent(self, weights: Weights) -> Weights:
        return {name: weights[name].clone() for name in self.exits()}

    def prepare(self, report: dict[str, float]) -> tuple[SubmodelSpec, Weights]:
        order, shapes = self.order, self.adapters()
        drawn = {n: first_factor(n, s, order.seed, order.client, self.settings.draw) for n, s in shapes.items()}
        return order.spec, {**self.given(), **{name: place(factor, self.device) for name, factor in drawn.items()}}


class FactoredMerge(SegmentMerge):
    """Windows as they come; factors multiplied out."""

    accelerated: ClassVar[tuple[str, ...]] = SegmentMerge.accelerated

    def __init__(self, *parts: object, seed: int, **settings: object) -> None:
        super().__init__(*parts, **settings)  # type: ignore[arg-type]
        self.seed = seed

    def decode(self, item: Contribution, current: Weights) -> Contribution:
        ups = [name for name in item.delta if is_adapter(name) and name.endswith(".up")]
        if not ups:
            return item
        settings = FactoredSettings.model_validate(item.settings)
        whole = {name: tensor for name, tensor in item.delta.items() if not is_adapter(name)}
        for up in ups:
            down = up.removesuffix("up") + "down"
            moved = item.delta[down]
            rank, inputs = moved.shape
            drawn = first_factor(down, (rank, inputs), self.seed, item.client, settings.draw)
            matrix = up.replace(".adapters", "").replace(".up", ".weight")
            whole[matrix] = item.delta[up].T @ (place(drawn, moved.device) - moved) * settings.scale
        return replace(item, delta=whole)
