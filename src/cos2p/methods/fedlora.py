"""Federated LoRA (Hu et al. 2022, on devices): low-rank factors next to frozen matrices train, with the head.

Two forms of the same devices:

    hlora   products are averaged and cut back to the largest rank by their singular values (HLoRA, FlexLoRA): devices
            of unequal ranks count alike, whatever the basis of their factors
    ffa     `down` is drawn once from the run's seed and never trained (FFA-LoRA, Sun et al. 2024): averaging is exact,
            half the bytes travel

A device takes the largest rank that fits its memory, up to `rank`; where none does, it trains the head alone. Where
memory is short the base is streamed from disk in 16 or 8 bits, one block in memory, what went into each block kept and
the rest computed again (as MeBP does on phones); features of what is frozen below the adapters are computed once.

The scale s = α/r is one number for all ranks; `peft`'s usual α = 2r is s = 2. Dropout is left out, so runs repeat bit
for bit. The base with the adapters merged into it is evaluated and saved; the adapters are saved next to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from cos2p.aggregation.merge import Merge
from cos2p.memory.parts import HEAD, Part, factors
from cos2p.methods.adapters.device import HEAD_STEP, AdapterSettings, LoraTrainer, adapter_task
from cos2p.methods.adapters.factors import adapter_shapes, check_targets, first_adapters, merged
from cos2p.methods.adapters.merge import FactorMerge, ProductMerge
from cos2p.methods.base import Assignment, Call, Forms, Member, RunContext
from cos2p.methods.frozen_base import LateWorkMethod, LateWorkSettings
from cos2p.models.layout import Weights
from cos2p.settings import Settings


class AdapterMethodSettings(LateWorkSettings, AdapterSettings):
    rank: int = Field(default=8, ge=1, description="Rank of all adapters.")
    lr_factor: float = Field(
        default=10.0, gt=0, description="η is the recipe's times this: adapters want larger steps than weights."
    )


class AdapterMethod(LateWorkMethod):
    """Base of methods that train adapters and the head: factors are averaged, and merged into what is evaluated."""

    settings_type: ClassVar[type[Settings]] = AdapterMethodSettings
    settings: AdapterMethodSettings
    first = 0
    """The lowest block that has adapters."""

    def __init__(self, settings: Settings, context: RunContext) -> None:
        super().__init__(settings, context)
        check_targets(context.config, self.settings.targets)

    def adapters(
        self,
        member: Member,
        rank: int,
        blocks: tuple[int, ...] | None = None,
        trained: Literal["both", "up"] = "both",
    ) -> Assignment:
        """Adapters of this rank in the blocks that alone are sent, by default all from `first` on."""
        if blocks is None:
            blocks = tuple(range(self.first, self.context.config.depth))
        task = adapter_task(self.context, member, rank, self.first, blocks, self.settings, trained)
        return self.assignment(*task, LoraTrainer)

    def shapes(self) -> dict[str, tuple[int, int]]:
        """Shapes of the server's adapters."""
        blocks = range(self.first, self.context.config.depth)
        return adapter_shapes(self.context.config, blocks, self.settings.targets, self.settings.rank)

    def initial_weights(self, weights: Weights) -> Weights:
        return {**weights, **first_adapters(self.shapes(), self.context.seed)}

    def evaluated_weights(self, weights: Weights) -> Weights:
        return merged(weights, self.settings.scale)

    def merge(self) -> Merge:
        return FactorMerge(self.context.config, self.settings.weights)


class FedLoraSettings(AdapterMethodSettings):
    form: Literal["hlora", "ffa"] = Field(
        default="hlora", description="`hlora`: products are averaged; `ffa`: `down` is fixed."
    )
    rank: int = Field(default=32, ge=1, description="Largest rank; a device takes as much of it as fits.")
    top_blocks: int = Field(default=0, ge=0, description="How many of the top blocks have adapters; 0: all.")


class FedLora(AdapterMethod):
    name: ClassVar[str] = "fedlora"
    title: ClassVar[str] = "FedLoRA"
    settings_type: ClassVar[type[Settings]] = FedLoraSettings
    settings: FedLoraSettings
    forms: ClassVar[Forms] = {"FFA": ("method.form=ffa",)}

    def __init__(self, settings: Settings, context: RunContext) -> None:
        super().__init__(settings, context)
        self.first = max(0, context.config.depth - (self.settings.top_blocks or context.config.depth))

    def parts(self, member: Member) -> Sequence[Part]:
        return [*factors(self.settings.rank), HEAD]

    def assign(self, call: Call) -> Assignment:
        part = self.part_of(call.member)
        if part == HEAD:
            return self.head_alone(call.member)
        trained: Literal["both", "up"] = "up" if self.settings.form == "ffa" else "both"
        return self.adapters(call.member, int(part.size), trained=trained)

    def evaluated_adapters(self) -> Mapping[str, float]:
        return {"scale": self.settings.scale, "adapters": sum(map(math.prod, self.shapes().values()))}

    def merge(self) -> Merge:
        if self.settings.form == "hlora":
            return ProductMerge(self.context.config, self.settings.weights)
        return super().merge()


class ProbeSettings(LateWorkSettings):
    lr_factor: float = Field(
        default=HEAD_STEP,
        gt=0,
        description="η is the recipe's times this: a head alone wants larger steps than blocks.",
    )


class LinearProbe(LateWorkMethod):
    """The head alone, on features of the untouched base: what any fine-tuning has to beat."""

    name: ClassVar[str] = "probe"
    title: ClassVar[str] = "linear probe"
    settings_type: ClassVar[type[Settings]] = ProbeSettings
    settings: ProbeSettings

    def assign(self, call: Call) -> Assignment:
        return self.head_alone(call.member)

    def merge(self) -> Merge:
        return FactorMerge(self.context.config, self.settings.weights)
