"""Federated LoRA (Hu et al. 2022, on devices): low-rank factors beside frozen matrices train, with the head.

Three forms of the same devices:

    hlora   products are averaged and cut back to the largest rank by their singular values (HLoRA, FlexLoRA): devices
            of unequal ranks count alike, whatever the basis of their factors
    ffa     `down` is drawn once from the run's seed and never trained (FFA-LoRA, Sun et al. 2024): averaging is exact,
            half the bytes travel
    fedit   both factors are averaged row by row (FedIT): the usual form, and a biased one

A device takes the largest of the ranks 32, 16, 8, 4, 2 that fits its memory, up to `rank`; where none does, it trains
the head alone. It is as small as it can be: base in 16 or 8 bits on the wire and on disk, one block in memory, what
went into each block kept and the rest computed again (as MeBP does on phones), features of what is frozen below the
adapters computed once, on disk if memory is short.

The scale s = α/r is one number for all ranks; `peft`'s usual α = 2r is s = 2. Dropout is left out, so runs repeat bit
for bit. What is judged and saved is the base with the adapters merged into it; the adapters are saved beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from cos2p.aggregation.merge import Merge
from cos2p.aggregation.rules import Redispatch
from cos2p.aggregation.triggers import Trigger
from cos2p.messages import Precision
from cos2p.methods.base import Assignment, Call, Forms, Member, Method, RunContext
from cos2p.methods.fedlora.adapters import adapter_shapes, check_targets, first_adapters, merged
from cos2p.methods.fedlora.device import AdapterSettings, LoraSettings, LoraTrainer
from cos2p.methods.fedlora.merge import FactorMerge, ProductMerge
from cos2p.methods.fitting import first_that_fits
from cos2p.models.layout import Weights
from cos2p.models.spec import BlockKeep, SubmodelSpec
from cos2p.settings import Settings, shared
from cos2p.training.trainer import Trainer

RANKS = (32, 16, 8, 4, 2)
"""What a device chooses from; below the smallest it trains the head alone."""


class FrozenBaseSettings(Settings):
    """What does not depend on adapters."""

    weights: Literal["uniform", "samples"] = Field(default="uniform", description="How devices are averaged.")
    precision: Precision = Field(default="float16", description="Of the base on the wire: float32, float16 or int8.")
    aggregation: Literal["synchronous", "semi-asynchronous"] = Field(
        default="synchronous", description="`semi-asynchronous`: by schedule.mu and schedule.t_clk, late work is kept."
    )


class FedLoraSettings(FrozenBaseSettings, AdapterSettings):
    form: Literal["hlora", "ffa", "fedit"] = Field(
        default="hlora", description="`hlora`: products are averaged; `ffa`: `down` is fixed; `fedit`: factors are."
    )
    rank: int = Field(default=32, ge=2, description="Largest rank; a device takes what fits of 32, 16, 8, 4, 2.")
    top_blocks: int = Field(default=0, ge=0, description="How many of the top blocks have adapters; 0: all.")

    @model_validator(mode="after")
    def _consistent(self) -> FedLoraSettings:
        if self.form == "fedit" and self.aggregation != "synchronous":
            raise ValueError("factors of different versions have different bases: form 'fedit' is synchronous")
        return self


class FrozenBaseMethod(Method):
    """A base that nobody trains, streamed; adapters of some rank, or the head alone."""

    trainers: ClassVar[tuple[type[Trainer], ...]] = (LoraTrainer,)
    settings: FrozenBaseSettings

    def rules(self) -> tuple[Trigger, Redispatch]:
        schedule = self.context.schedule
        if self.settings.aggregation == "synchronous":
            return super().rules()
        return Trigger.semi_asynchronous(schedule.mu, schedule.t_clk), schedule.redispatch

    def options(self, member: Member, ranks: tuple[int, ...], first: int, adapters: AdapterSettings) -> Iterator[
        Assignment
    ]:  # fmt: skip
        """Tasks of these ranks, the largest first; then the head alone. Blocks below `first` have no adapters."""
        depth = self.context.config.depth
        for rank in (*ranks, 0):
            frozen = first if rank else depth - 1
            for features in ("memory", "disk"):
                yield self.task(member, rank, frozen, tuple(range(frozen, depth)), features, adapters)

    def task(
        self,
        member: Member,
        rank: int,
        frozen: int,
        blocks: tuple[int, ...],
        features: Literal["memory", "disk"],
        adapters: AdapterSettings,
    ) -> Assignment:
        config = self.context.config
        window = (BlockKeep.full(config),) * (config.depth - frozen)
        spec = SubmodelSpec(frozen, window, (config.depth,), fixed_embeddings=True)
        local = self.context.local(member, features=features).model_dump()
        settings = LoraSettings.model_validate(
            {**local, **shared(adapters, AdapterSettings), "rank": rank, "blocks": blocks, "factors": self.factors}
        )
        return Assignment(spec, settings, LoraTrainer, prefix_precision=self.settings.precision)

    @property
    def factors(self) -> Literal["both", "up"]:
        """Which factors of an adapter train."""
        return "both"

    def merge(self) -> Merge:
        return FactorMerge(self.context.config, self.settings.weights)


class FedLora(FrozenBaseMethod):
    name: ClassVar[str] = "fedlora"
    title: ClassVar[str] = "FedLoRA"
    settings_type: ClassVar[type[Settings]] = FedLoraSettings
    settings: FedLoraSettings
    forms: ClassVar[Forms] = {"FFA": ("method.form=ffa",)}

    def __init__(self, settings: Settings, context: RunContext) -> None:
        super().__init__(settings, context)
        check_targets(context.config, self.settings.targets)
        self.ranks = tuple(rank for rank in RANKS if rank <= self.settings.rank)
        top = self.settings.top_blocks or context.config.depth
        self.first = max(0, context.config.depth - top)
        self.chosen: dict[str, Assignment] = {}
        """Each member's task: always the same one."""

    @property
    def factors(self) -> Literal["both", "up"]:
        return "up" if self.settings.form == "ffa" else "both"

    def assign(self, call: Call) -> Assignment:
        name = call.member.name
        if name not in self.chosen:
            options = self.options(call.member, self.ranks, self.first, self.settings)
            self.chosen[name] = first_that_fits(self.context, call.member, options, "the head alone")
        return self.chosen[name]

    def initial_weights(self, weights: Weights) -> Weights:
        blocks = range(self.first, self.context.config.depth)
        shapes = adapter_shapes(self.context.config, blocks, self.settings.targets, self.ranks[0])
        return {**weights, **first_adapters(shapes, self.context.seed)}

    def evaluated_weights(self, weights: Weights) -> Weights:
        return merged(weights, self.settings.scale)

    def merge(self) -> Merge:
        kind = ProductMerge if self.settings.form == "hlora" else FactorMerge
        return kind(self.context.config, self.settings.weights)


class LinearProbe(FrozenBaseMethod):
    """The head alone, on features of the untouched base: what any fine-tuning has to beat."""

    name: ClassVar[str] = "probe"
    title: ClassVar[str] = "linear probe"
    settings_type: ClassVar[type[Settings]] = FrozenBaseSettings

    def assign(self, call: Call) -> Assignment:
        options = self.options(call.member, (), 0, AdapterSettings())
        return first_that_fits(self.context, call.member, options, "the head alone")
