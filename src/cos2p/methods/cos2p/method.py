"""Co-S²P: rolling depth windows, trained width masks, self-distillation, semi-asynchronous segment-wise merging.

Sections III–IV and Algorithms 1–2 of "Unity is Power". Where the paper leaves a point open, docs/explanation says what
is done here and why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch

from cos2p.aggregation.merge import Merge, SegmentMerge
from cos2p.aggregation.settings import Redispatch
from cos2p.aggregation.triggers import Trigger
from cos2p.costs.fitting import mask_plan
from cos2p.costs.ledger import peak
from cos2p.costs.shape import Workload
from cos2p.errors import ConfigError
from cos2p.memory.parts import HEAD, RANK, WIDE, Part, factors, windows
from cos2p.messages import Order, Precision, Update
from cos2p.methods.adapters.device import HEAD_STEP, AdapterSettings, LoraTrainer, head_task
from cos2p.methods.adapters.factors import adapter_shapes, is_adapter, merged
from cos2p.methods.base import Assignment, Call, Forms, Member, Method, RunContext
from cos2p.methods.cos2p.factored import ApartMerge, FactoredMerge, FactoredTrainer, factored_task
from cos2p.methods.cos2p.settings import LEARNED, Cos2pSettings
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights, init_tensor
from cos2p.models.spec import BlockKeep, BlockSize, SubmodelSpec
from cos2p.seeding import torch_rng
from cos2p.settings import Settings, shared
from cos2p.submodel.rates import SubmodelSize, cut, exit_depths, growing_top, spread, tier_offsets, window_start
from cos2p.training.costs import workload
from cos2p.training.masks import random_keep
from cos2p.training.settings import Distillation, FeatureCache, LocalSettings, MaskPhase, MaskTraining
from cos2p.training.statistics import StatisticsTrainer
from cos2p.training.trainer import SubmodelTrainer, Trainer

FIRST_ORDER_SHARE = 0.25
"""Share of the samples that first-order scores are taken of."""


class Cos2p(Method):
    name: ClassVar[str] = "cos2p"
    title: ClassVar[str] = "Co-S²P"
    settings_type: ClassVar[type[Settings]] = Cos2pSettings
    settings: Cos2pSettings
    trainers: ClassVar[tuple[type[Trainer], ...]] = (SubmodelTrainer, StatisticsTrainer, LoraTrainer, FactoredTrainer)
    forms: ClassVar[Forms] = {
        "scaler": ("method.rescale=true",),
        "wide windows": ("method.rescale=true", "method.window.ratio=4"),
        "growing": (  # field by field: a recipe for a pretrained model cannot have it, and is not made to
            "method.window.schedule=growing",
            "method.window.ratio=4",
            "method.rescale=true",
            "method.exits.kind=none",
            "method.masks.heads=random",
            "method.masks.units=random",
        ),
    }

    def __init__(self, settings: Settings, context: RunContext) -> None:
        super().__init__(settings, context)
        self.cuts: dict[str, SubmodelSize] = {
            name: cut(context.config, member.rate, self.settings.window.ratio)
            for name, member in context.members.items()
        }
        depths = [shape.blocks for shape in self.cuts.values()]
        window, depth = self.settings.window, context.config.depth
        self.first = window.first if window.first != "auto" else depth // 2 if window.rest == "kept" else 0
        """The lowest block that trains."""
        if self.first >= depth:
            raise ConfigError(f"method.window.first is {self.first}; the model has blocks 0 to {depth - 1}")
        offsets = tier_offsets(depth, depths, self.first)
        self.offsets = dict(zip(self.cuts, offsets, strict=True))
        self.masks: dict[str, dict[int, BlockKeep]] = {name: {} for name in context.members}
        """Each client's last mask of each block, as its updates say."""
        self.dispatched = [0] * context.config.depth
        """How many tasks had each block in their window."""
        self.round = 0
        """The version that the newest task was cut from."""
        self.merged = 0
        """Updates that trained and were merged so far."""
        self.reach = max(depths, default=1)
        """Blocks of the largest window: where a `growing` model begins."""
        self.sized_by_rate, self.ratio = window.rest == "removed", window.ratio

    @classmethod
    def model_defaults(cls, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        return with_one_exit(settings)

    def initial_weights(self, weights: Weights) -> Weights:
        if self._rank_apart():
            blocks, targets = range(self.context.config.depth), AdapterSettings().targets
            shapes = adapter_shapes(self.context.config, blocks, targets, self._most_rank)
            return {**weights, **{name: torch.zeros(shape) for name, shape in shapes.items()}}
        if self.settings.window.schedule != "growing":
            return weights
        return passing_on(self.context.config, weights, self.reach, self.context.seed)

    @classmethod
    def pretrained(cls, language: bool) -> Mapping[str, Any]:
        """The form for such models. Its exits start in closed form, which is for classifiers: a language model brings
        its own output table."""
        return {"form": "pretrained", **({"exits": {"start": "fresh"}} if language else {})}

    @classmethod
    def not_asked(cls, settings: Settings, order: Order) -> str:
        assert isinstance(settings, Cos2pSettings)
        below = settings.factors.below
        factors = settings.window.rest == "kept" if below == "auto" else below > 0
        if order.trainer in (LoraTrainer.name, FactoredTrainer.name) and not factors:
            return f"the trainer {order.trainer!r}"
        learned = settings.masks.learned and order.trainer == SubmodelTrainer.name
        epochs = order.settings.get("mask", {}).get("epochs", 0)
        if learned and order.quotas is not None and epochs > settings.masks.epochs:
            return f"method.masks.epochs = {epochs}"
        return super().not_asked(settings, replace(order, quotas=None) if learned else order)

    @classmethod
    def frozen_precision(cls, settings: Settings) -> Precision:
        assert isinstance(settings, Cos2pSettings)
        return settings.prefix.precision

    def rules(self) -> tuple[Trigger, Redispatch]:
        schedule = self.context.schedule
        return Trigger.semi_asynchronous(schedule.mu, schedule.t_clk), schedule.redispatch

    def merge(self) -> Merge:
        config, below = self.context.config, self.settings.factors.below
        if rank := self._rank_apart():
            return ApartMerge(config, self.settings.weighting, rank)
        plain = below == 0 or (below == "auto" and self.context.privacy.on)
        return (SegmentMerge if plain else FactoredMerge)(config, self.settings.weighting)

    def _rank_apart(self) -> int:
        """The rank of what is kept next to the matrices of a language model (see `factored`); 0: it goes into them."""
        if self.context.config.task != "language-modeling" or self.context.privacy.on:
            return 0
        parts = [self.part_of(member) for member in self.context.members.values()]
        return max((int(p.size) for p in parts), default=0) if all(p.kind == "factors" for p in parts) else 0

    def evaluated_weights(self, weights: Weights) -> Weights:
        return merged(weights, 1.0)

    def from_evaluated(self, order: Order, weights: Weights) -> bool:
        apart = order.trainer != FactoredTrainer.name and any(map(is_adapter, weights))
        return apart or super().from_evaluated(order, weights)

    # ------------------------------------------------------------ which submodel

    def assign(self, call: Call) -> Assignment:
        member, self.round = call.member, call.version
        part = member.part or self._part_of_rate(member)
        if part.kind != "window":
            return self._on_frozen_base(member, part)
        blocks = self.next_blocks(member, call.cycle)
        for block in blocks:
            self.dispatched[block] += 1
        return self._window(call, blocks, self._trains_masks(member, blocks, call.version))

    def _window(self, call: Call, blocks: range, trains_masks: bool) -> Assignment:
        """These blocks, cut to the member's width."""
        member, settings, start = call.member, self.settings, blocks.start
        quotas = tuple(self.quota(member, block) for block in blocks)
        window = tuple(self._kept(call, block, quota) for block, quota in zip(blocks, quotas, strict=True))
        kept = settings.window.rest == "kept"
        spec = SubmodelSpec(start, window, self._exits(start, len(blocks)), rest=kept, suffix=kept)
        spec = self.context.tables(spec, member)
        local = self._local(member)
        if trains_masks:
            spec, local = self._with_candidates(call, spec, local)
        return Assignment(
            spec,
            local,
            quotas=quotas if trains_masks else None,
            prefix_precision=settings.prefix.precision,
        )

    def head_depths(self) -> Sequence[int]:
        """Every exit that will be trained."""
        depth = self.context.config.depth
        return (depth,) if self.settings.window.rest == "kept" else range(1, depth + 1)

    def statistics_options(self) -> Mapping[str, Any]:
        return {"precision": self.settings.prefix.precision, **shared(self.settings.prefix, FeatureCache)}

    def parts(self, member: Member) -> Sequence[Part]:
        """For a pretrained model, factors of all blocks stand between wide windows and narrow ones."""
        below, kept = self.settings.factors.below, self.settings.window.rest == "kept"
        if below == "auto":
            usable = kept and member.auto and not self.context.privacy.on
            below = 0.0 if not usable else WIDE if self.context.config.task == "classification" else 2.0
        own = windows() if member.auto else [Part("window", member.rate)]
        wide, narrow = ([part for part in own if (part.size >= below) == yes] for yes in (True, False))
        return [
            *wide,
            *(factors(self._most_rank) if below and narrow else []),
            *narrow,
            *([HEAD] if kept and member.auto else []),
        ]

    @property
    def _most_rank(self) -> int:
        """No more than a matrix has directions."""
        shapes = adapter_shapes(self.context.config, [0], AdapterSettings().targets, 1).values()
        return min(RANK, *(width for _, width in shapes))

    def _part_of_rate(self, member: Member) -> Part:
        """The part of a member that was not planned: its window, unless its method may have another part for it."""
        plain = Part("window", member.rate)
        return plain if self.parts(member)[0] == plain else self.part_of(member)

    def _on_frozen_base(self, member: Member, part: Part) -> Assignment:
        precision = self.settings.prefix.precision
        if part == HEAD:
            task = head_task(self.context, member)
            return Assignment(*task, LoraTrainer, prefix_precision=precision, lr_factor=HEAD_STEP)
        task = factored_task(self.context, member, int(part.size))
        lr_factor = self.settings.factors.lr_factor
        return Assignment(*task, FactoredTrainer, prefix_precision=precision, lr_factor=lr_factor)

    def next_blocks(self, member: Member, cycle: int) -> range:
        blocks = self.cuts[member.name].blocks
        window, offset = self.settings.window, self.offsets[member.name]
        trained = max(0, self.round - self.statistics_first)  # rounds that trained
        turn = trained if window.schedule == "together" else self.top() if window.schedule == "growing" else cycle
        start = window_start(window.schedule, self.dispatched, blocks, turn, offset, self.first)
        return range(start, start + blocks)

    def top(self) -> int:
        """The height at which the windows of a `growing` model end now."""
        progress = self.context.schedule.share_done(self.round, self.merged, self.statistics_updates)
        return growing_top(self.context.config.depth, self.reach, progress)

    def _exits(self, start: int, blocks: int) -> tuple[int, ...]:
        if self.settings.window.rest == "kept":  # an exit below pretrained blocks would tear them off their inputs
            return (self.context.config.depth,)
        tiers = [c.blocks for c in self.cuts.values()] if self.settings.exits.kind == "tiers" else []
        return exit_depths(start, blocks, tiers)

    def quota(self, member: Member, block: int) -> BlockSize:
        """Heads and units a client may keep of a block.

        It depends on the block's number modulo K, so that any K consecutive blocks add up to exactly what the rate
        allows, and a block's mask does not change with the window it happens to be in.
        """
        shape = self.cuts[member.name]
        place = block % shape.blocks
        return BlockSize(spread(shape.heads, shape.blocks)[place], spread(shape.units, shape.blocks)[place])

    def _trains_masks(self, member: Member, blocks: range, version: int) -> bool:
        masks = self.settings.masks
        if not masks.learned or (masks.epochs == 0 and "trainable" in masks.learned):
            return False
        return any(self._undecided(member, block, version) for block in blocks)

    def _undecided(self, member: Member, block: int, version: int) -> bool:
        """Whether a client may still choose what it keeps of a block: in the first rounds, and at its first visit."""
        return version < self.settings.masks.rounds or block not in self.masks[member.name]

    def _with_candidates(
        self, call: Call, spec: SubmodelSpec, local: LocalSettings
    ) -> tuple[SubmodelSpec, LocalSettings]:
        """Widen the undecided blocks to what the mask phase may choose from: all of it, or what the memory allows.

        Where not all fits, the client's present mask stays and the others take turns from task to task.
        """
        config, member, masks = self.context.config, call.member, self.settings.masks
        work = workload(local, member.samples)
        plan = mask_plan(config, spec, work, self._mask_memory(member, spec, work))
        window = []
        for block, keep, heads, units in zip(
            range(spec.frozen, spec.top), spec.window, plan.heads, plan.units, strict=True
        ):
            if not self._undecided(member, block, call.version):
                window.append(keep)
                continue
            rng = torch_rng(self.context.seed, "candidates", member.name, block, call.attempt)
            window.append(
                BlockKeep(
                    widen(keep.heads, config.groups, heads, rng) if masks.heads in LEARNED else keep.heads,
                    widen(keep.units, config.mlp, units, rng) if masks.units in LEARNED else keep.units,
                )
            )
        phase = local.mask.model_copy(update={"micro_batch": plan.micro_batch})
        return replace(spec, window=tuple(window)), local.model_copy(update={"mask": phase})

    def _mask_memory(self, member: Member, spec: SubmodelSpec, work: Workload) -> int:
        """Bytes for a mask phase: all that the device has to train masks, as many as the training takes for scores."""
        memory, enforced = member.device.memory, self.context.enforce_memory
        own = peak(self.context.config, spec, work).total
        if self.settings.masks.by_scores:
            return min(memory, own) if enforced else own
        return memory if enforced else max(memory, own)

    def _kept(self, call: Call, block: int, quota: BlockSize) -> BlockKeep:
        """The client's mask of a block: the trained one if there is one, else a draw."""
        config, name, masks = self.context.config, call.member.name, self.settings.masks
        fixed = random_keep(config, quota, torch_rng(self.context.seed, "fixed mask", name, block))
        fresh = random_keep(config, quota, torch_rng(self.context.seed, "random mask", name, block, call.attempt))
        learned = self.masks[name].get(block, fixed)
        choice = {"trainable": learned, "first-order": learned, "fixed": fixed, "random": fresh}
        return BlockKeep(choice[masks.heads].heads, choice[masks.units].units)

    def _local(self, member: Member) -> LocalSettings:
        masks, exits = self.settings.masks, self.settings.exits
        phase = shared(masks, MaskTraining)
        if masks.by_scores:
            phase |= {"epochs": 0, "scores": True, "share": FIRST_ORDER_SHARE}
        changes = {
            **shared(exits, Distillation),
            **shared(self.settings.prefix, FeatureCache),
            "rescale": self.settings.rescale,
            "mask": MaskPhase(**phase, heads=masks.heads in LEARNED, units=masks.units in LEARNED),
        }
        if exits.kind == "none":
            changes["lambda2"] = 0.0
        return self.context.local(member, **changes)

    # ------------------------------------------------------------ what the server remembers

    def accepted(self, order: Order, update: Update) -> None:
        if order.trainer in (SubmodelTrainer.name, FactoredTrainer.name, LoraTrainer.name):
            self.merged += 1
        if order.trainer == SubmodelTrainer.name:
            self.masks[update.client] |= dict(enumerate(update.spec.window, update.spec.frozen))

    def state(self) -> tuple[dict[str, Any], Weights]:
        masks = {
            name: {str(block): [list(keep.heads), list(keep.units)] for block, keep in blocks.items()}
            for name, blocks in self.masks.items()
        }
        values = {"masks": masks, "dispatched": self.dispatched, "round": self.round, "merged": self.merged}
        return values, {}

    def load_state(self, values: Mapping[str, Any], tensors: Weights) -> None:
        for name, blocks in values["masks"].items():
            kept = {int(block): BlockKeep.of(*keep) for block, keep in blocks.items()}
            if name in self.cuts:  # a mask from before the client's rate was lowered is too large for it now
                member = self.context.members[name]
                self.masks[name] = {b: keep for b, keep in kept.items() if within(keep, self.quota(member, b))}
        self.dispatched, self.round = list(values["dispatched"]), int(values["round"])
        self.merged = int(values.get("merged", 0))


# Masks as sets of heads and units: what a quota allows, and what may be chosen from.


def within(keep: BlockKeep, quota: BlockSize) -> bool:
    return len(keep.heads) <= quota.heads and len(keep.units) <= quota.units


def widen(kept: tuple[int, ...], segments: int, count: int, rng: torch.Generator) -> tuple[int, ...]:
    """`count` segments: those kept, and others drawn at random."""
    if count >= segments:
        return tuple(range(segments))
    own = set(kept)
    others = [s for s in torch.randperm(segments, generator=rng).tolist() if s not in own]
    return tuple(sorted([*kept, *others[: max(0, count - len(kept))]]))


# A model that grows from the bottom: what has to be so before its windows can rise.
#
# Windows end at one height, which rises (`window.schedule = "growing"`). Blocks above it add nothing to what they get,
# so that the model is whole at every moment and can be read at its top; and one exit serves every height, so that what
# it has learned below is not lost with the next block.


LAST = ("o.weight", "fc2.weight")
"""They write into the residual: where they are zero, a fresh block passes on what it gets, and can still learn."""


def with_one_exit(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fields of `[model]` that are other defaults with these of `[method]`."""
    window = settings.get("window")
    schedule = window.get("schedule") if isinstance(window, Mapping) else None
    grows = schedule == "growing" or (settings.get("form") == "growing" and schedule is None)
    return {"exits": "shared"} if grows else {}


def passing_on(config: ModelConfig, weights: Weights, reach: int, seed: int) -> Weights:
    """The fresh model whose blocks from `reach` on add nothing yet."""
    if config.exits != "shared":
        raise ConfigError(
            "method.window.schedule 'growing' reads every height by the same exit: set model.exits = 'shared', "
            "or another schedule"
        )
    names = [f"blocks.{block}.{name}" for block in range(reach, config.depth) for name in LAST]
    if names and not torch.equal(weights[names[-1]], init_tensor(config, names[-1], seed)):
        raise ConfigError(
            "method.window.schedule 'growing' begins with empty blocks, and this model comes from a checkpoint, whose "
            "blocks it would lose; take method.form = 'pretrained'"
        )
    return {**weights, **{name: torch.zeros_like(weights[name]) for name in names}}


# Co-S²P with other moments of aggregation.


class Cos2pAsync(Cos2p):
    """Co-S²P(Async.): every update makes a new version at once."""

    name: ClassVar[str] = "cos2p-async"
    title: ClassVar[str] = "Co-S²P (Async.)"

    def rules(self) -> tuple[Trigger, Redispatch]:
        return Trigger.asynchronous(), "at-once"


class Cos2pSync(Cos2p):
    """Co-S²P without its semi-asynchronous part: the server waits for everybody."""

    name: ClassVar[str] = "cos2p-sync"
    title: ClassVar[str] = "Co-S²P (Sync.)"

    def rules(self) -> tuple[Trigger, Redispatch]:
        return Trigger.synchronous(), "at-aggregation"


class TopWindow(Cos2p):
    """A window that never moves: Co-S²P with every device at the top of the model, as deep and wide as its rate allows.

    Everything below stays as it was, so its features are the pretrained model's for good: what fine-tuning the last
    blocks gives, and a yardstick for every window that moves.
    """

    name: ClassVar[str] = "topwindow"
    title: ClassVar[str] = "top window"

    def next_blocks(self, member: Member, cycle: int) -> range:
        depth = self.context.config.depth
        return range(depth - self.cuts[member.name].blocks, depth)

    def parts(self, member: Member) -> Sequence[Part]:
        return Method.parts(self, member)
