"""LoRA on the device: adapters and the head train, the base is streamed, and only what was trained travels back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from cos2p.accelerator import place
from cos2p.costs.ledger import Ledger
from cos2p.costs.tape import FLOAT
from cos2p.methods.adapters.costs import AdapterLoad
from cos2p.methods.adapters.factors import Target, adapter_shapes, first_factor, take_rank
from cos2p.methods.adapters.model import AdaptedTransformer
from cos2p.methods.base import Member, RunContext
from cos2p.models.layout import Weights, exit_key, exit_parameters, layout
from cos2p.models.spec import BlockKeep, SubmodelSpec
from cos2p.numerics.output_table import SMALL
from cos2p.settings import Settings, shared
from cos2p.submodel.slicing import frozen_slices, window_slices
from cos2p.training.contract import FrozenParts, TaskContract
from cos2p.training.costs import TaskFlops, workload
from cos2p.training.settings import LocalSettings
from cos2p.training.trainer import Trainer

Shape = tuple[int, ...]


class AdapterSettings(Settings):
    """Where adapters stand: the recipe's, and a part of every task."""

    targets: tuple[Target, ...] = Field(
        default=("q", "v", "fc2"), min_length=1, description="Matrices with an adapter: q, k, v, o, fc1, gate, fc2."
    )
    scale: float = Field(default=2.0, gt=0, description="s = α/r, the same for every rank; 1 to 4.")


class LoraSettings(LocalSettings, AdapterSettings):
    """Plain training of adapters and head."""

    rank: int = Field(default=8, ge=0, description="Rank of this device's adapters; 0: the head alone.")
    blocks: tuple[int, ...] = Field(default=(), description="Blocks that run behind the frozen ones, ascending.")
    factors: Literal["both", "up"] = Field(default="both", description="`up`: `down` is drawn from the run's seed.")


class LoraContract(TaskContract):
    """Adapters and exit come back; the blocks that run are frozen parts."""

    settings: LoraSettings

    def adapters(self) -> dict[str, tuple[int, int]]:
        settings = self.settings
        return adapter_shapes(self.config, settings.blocks, settings.targets, settings.rank)

    def trained_adapters(self) -> dict[str, tuple[int, int]]:
        every = self.settings.factors == "both"
        return {name: shape for name, shape in self.adapters().items() if every or name.endswith(".up")}

    def exits(self) -> dict[str, Shape]:
        key = exit_key(self.config, self.config.depth)
        return {f"{key}.{name}": p.shape for name, p in exit_parameters(self.config).items()}

    def sent(self, weights: Weights) -> Weights:
        return {name: weights[name].clone() for name in self.exits()} | take_rank(weights, self.trained_adapters())

    def frozen(self) -> FrozenParts:
        """Embeddings, all blocks that run, and the output table of a language model."""
        spec, table = self.order.spec, layout(self.config)
        slices = dict(frozen_slices(self.config, spec))
        if "lm_head.weight" in table:
            slices["lm_head.weight"] = window_slices(self.config, spec)["lm_head.weight"]
        streamed = tuple(f"blocks.{block}." for block in self.settings.blocks)
        slices |= {name: None for name in table if name.startswith(streamed)}
        return {name: (name, cut) for name, cut in slices.items()}

    def answer(self, spec: SubmodelSpec) -> Mapping[str, Shape]:
        return {**self.exits(), **self.trained_adapters()}

    def upload(self) -> int:
        return FLOAT * sum(map(math.prod, self.answer(self.order.spec).values()))

    def costs(self, samples: int) -> AdapterLoad:
        settings = self.settings
        every = sum(map(math.prod, self.adapters().values()))
        exits = [math.prod(shape) for shape in self.exits().values()]
        own = [math.prod(shape) for shape in self.trained_adapters().values()]
        return AdapterLoad(
            self.config,
            workload(settings, samples),
            stream=settings.memory_optimizations.stream is True,
            frozen=self.order.spec.frozen,
            streamed=len(settings.blocks),
            rank=settings.rank,
            targets=settings.targets,
            trains_down=settings.factors == "both",
            trained=[*own, *exits],
            exit_scalars=sum(exits),
            held=every - sum(own),
            rows=None if self.order.spec.rows is None else len(self.order.spec.rows),
            known=self.order.known_features,
        )

    def memory(self, samples: int) -> Ledger:
        return self.costs(samples).peak()

    def flops(self, samples: int, test_samples: int) -> TaskFlops:
        load = self.costs(samples)
        return TaskFlops(
            prefix=(samples + test_samples) * load.prefix_flops(),
            training=self.settings.epochs * samples * load.step_flops() + test_samples * load.forward_flops(),
        )

    def prefix_batch(self, samples: int) -> int:
        return self.costs(samples).prefix_batch()


class LoraTrainer(Trainer):
    name: ClassVar[str] = "lora"
    contract_type = LoraContract
    settings_type = LoraSettings
    supports = frozenset({"stream", "step_in_backward", "eight_bit", "recompute", "micro_batch"})
    contract: LoraContract
    settings: LoraSettings
    model: AdaptedTransformer

    def build(self, spec: SubmodelSpec) -> AdaptedTransformer:
        settings, file = self.settings, self._frozen()
        held = {name: tensor.clone() for name, tensor in self.start.items()}
        for name, shape in self.contract.adapters().items():
            if name not in held:
                held[name] = place(first_factor(name, shape, self.order.seed), self.device)
        model = AdaptedTransformer(
            self.config,
            spec,
            file,
            settings.blocks,
            settings.rank,
            settings.targets,
            settings.scale,
            settings.memory_optimizations,
        )
        if self.config.task == "language-modeling":
            name = "embed.tokens" if self.config.tied else "lm_head.weight"
            if model.outputs > SMALL:
                model.read_table(file.table(name))
            else:
                start = name.partition(".")[0] + "."
                held[name] = file.part(start)[name.removeprefix(start)]
        return model.load(held, trained=self.start)


HEAD_STEP = 30.0
"""η of a head alone, as a multiple of the recipe's, which is for blocks."""


def adapter_task(
    context: RunContext,
    member: Member,
    rank: int,
    frozen: int,
    blocks: tuple[int, ...],
    adapters: AdapterSettings,
    factors: Literal["both", "up"] = "both",
) -> tuple[SubmodelSpec, LoraSettings]:
    """Adapters of this rank in `blocks`, which run at every step; those below `frozen` run once."""
    config = context.config
    window = (BlockKeep.full(config),) * (config.depth - frozen)
    spec = SubmodelSpec(frozen, window, (config.depth,), fixed_embeddings=True)
    local = context.local(member).model_dump()
    own = {**shared(adapters, AdapterSettings), "rank": rank, "blocks": blocks, "factors": factors}
    return spec, LoraSettings.model_validate({**local, **own})


def head_task(context: RunContext, member: Member) -> tuple[SubmodelSpec, LoraSettings]:
    """The head alone."""
    top = context.config.depth - 1
    return adapter_task(context, member, 0, top, (top,), AdapterSettings())
