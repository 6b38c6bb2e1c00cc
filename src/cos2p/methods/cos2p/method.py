"""Co-S²P: rolling depth windows, trained width masks, self-distillation, semi-asynchronous segment-wise merging.

Sections III–IV and Algorithms 1–2 of "Unity is Power". Where the paper leaves a point open, docs/explanation says what
is done here and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from cos2p.aggregation.closed_form import HeadForm
from cos2p.aggregation.head_merge import HeadMerge
from cos2p.aggregation.merge import Merge, SegmentMerge
from cos2p.aggregation.settings import Redispatch
from cos2p.aggregation.triggers import Trigger
from cos2p.costs.budget import Workload, mask_plan, peak
from cos2p.errors import ConfigError
from cos2p.memory.fit import needed_bytes, room
from cos2p.messages import Order, Update
from cos2p.methods.adapters.device import LoraTrainer
from cos2p.methods.base import Assignment, Call, Forms, Member, Method, RunContext
from cos2p.methods.closed_heads import statistics_assignment
from cos2p.methods.cos2p.factored import FactoredMerge, FactoredTrainer, Size, factor_sizes, factored_task
from cos2p.methods.cos2p.growth import passing_on, with_one_exit
from cos2p.methods.cos2p.keeps import widen, within
from cos2p.methods.cos2p.settings import LEARNED, Cos2pSettings
from cos2p.models.layout import Weights
from cos2p.models.spec import BlockKeep, BlockSize, SubmodelSpec
from cos2p.seeding import torch_rng
from cos2p.settings import Settings, shared
from cos2p.submodel.rates import SubmodelSize, cut, spread
from cos2p.submodel.window import exit_depths, growing_top, tier_offsets, window_start
from cos2p.training.costs import workload
from cos2p.training.masks import random_keep
from cos2p.training.settings import Distillation, FeatureCache, LocalSettings, MaskPhase, MaskTraining
from cos2p.training.statistics import StatisticsTrainer
from cos2p.training.submodel_trainer import SubmodelTrainer
from cos2p.training.trainer import Trainer

FIRST_ORDER_SHARE = 0.25
"""Share of the samples that first-order scores are taken of."""


class Cos2p(Method):
    name: ClassVar[str] = "cos2p"
    title: ClassVar[str] = "Co-S²P"
    settings_type: ClassVar[type[Settings]] = Cos2pSettings
    settings: Cos2pSettings
    frugal: ClassVar[tuple[str, ...]] = ("method.prefix.features=disk",)
    last_resort: ClassVar[tuple[str, ...]] = ("method.window.schedule=top",)  # nothing has to stand above it
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
        window = self.settings.window
        if window.first >= context.config.depth:
            raise ConfigError(
                f"method.window.first is {window.first}; the model has blocks 0 to {context.config.depth - 1}"
            )
        offsets = tier_offsets(context.config.depth, depths, window.first)
        self.offsets = dict(zip(self.cuts, offsets, strict=True))
        self.masks: dict[str, dict[int, BlockKeep]] = {name: {} for name in context.members}
        """Each client's last mask of each block, as its updates say."""
        self.dispatched = [0] * context.config.depth
        """How many tasks had each block in their window."""
        self.reported: set[str] = set()
        """Clients that have reported sums of their features."""
        self.sizes: dict[str, Size | None] = {}
        """Of clients with few bytes: which factors they train; None if none fit, and a window does."""
        self.round = 0
        """The version that the newest task was cut from."""
        self.merged = 0
        """Updates that trained and were merged so far."""
        self.reach = max(depths, default=1)
        """Blocks of the largest window: where a `growing` model begins."""
        exits = self.settings.exits
        self.statistics_first, self.statistics_last = exits.start_form is not None, exits.finish_form is not None
        self.sized_by_rate = window.rest == "removed"

    @classmethod
    def model_defaults(cls, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        return with_one_exit(settings)

    def initial_weights(self, weights: Weights) -> Weights:
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
        if order.trainer in (LoraTrainer.name, FactoredTrainer.name) and not settings.factors.below:
            return f"the trainer {order.trainer!r}"
        learned = settings.masks.learned and order.trainer == SubmodelTrainer.name
        return super().not_asked(settings, replace(order, quotas=None) if learned else order)

    def rules(self) -> tuple[Trigger, Redispatch]:
        schedule = self.context.schedule
        return Trigger.semi_asynchronous(schedule.mu, schedule.t_clk), schedule.redispatch

    def merge(self) -> Merge:
        config, exits = self.context.config, self.settings.exits
        kind = FactoredMerge if self.settings.factors.below else SegmentMerge
        own = kind(config, self.settings.weighting)
        if self.statistics_first or self.statistics_last:
            return HeadMerge(own, exits.start_form, exits.finish_form)
        return own

    # ------------------------------------------------------------ which submodel

    def assign(self, call: Call) -> Assignment:
        member, settings = call.member, self.settings
        self.round = call.version
        if settings.exits.finish_form is not None and call.final:
            return self._statistics(member, settings.exits.finish_form, final=True)
        if settings.exits.start_form is not None and member.name not in self.reported:
            return self._statistics(member, settings.exits.start_form)
        factored = self._factored(call)
        if factored is not None:
            return factored
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

    def _statistics(self, member: Member, form: HeadForm, final: bool = False) -> Assignment:
        """Of every exit that will be trained; at the end of the one that the server's model is read at."""
        depth, prefix = self.context.config.depth, self.settings.prefix
        top_only = final or self.settings.window.rest == "kept"
        depths = (depth,) if top_only else range(1, depth + 1)
        return statistics_assignment(
            self.context, member, depths, form, prefix.precision, final, **shared(prefix, FeatureCache)
        )

    def _factored(self, call: Call) -> Assignment | None:
        """Factors of all blocks, in the bytes of the window that they stand for; None where a window trains."""
        name = call.member.name
        if call.member.rate >= self.settings.factors.below:
            return None
        if name not in self.sizes:
            most = self._window_bytes(call)
            tasks = ((size, self._of_size(call, size)) for size in factor_sizes())
            fitting = (size for size, task in tasks if needed_bytes(self, call.member, task) <= most)
            self.sizes[name] = next(fitting, None)
        size = self.sizes[name]
        return None if size is None else self._of_size(call, size)

    def _of_size(self, call: Call, size: Size) -> Assignment:
        factors, precision = self.settings.factors, self.settings.prefix.precision
        task = factored_task(self.context, call.member, size)
        return Assignment(*task, FactoredTrainer, prefix_precision=precision, lr_factor=factors.lr_factor)

    def _window_bytes(self, call: Call) -> float:
        """What training a window takes of the member, wherever it is; no more than it has."""
        config, blocks = self.context.config, self.cuts[call.member.name].blocks
        places = range(min(self.settings.window.first, config.depth - blocks), config.depth - blocks + 1)
        tasks = (self._window(call, range(start, start + blocks), trains_masks=False) for start in places)
        return min(room(self, call.member), max(needed_bytes(self, call.member, task) for task in tasks))

    def next_blocks(self, member: Member, cycle: int) -> range:
        blocks = self.cuts[member.name].blocks
        window, offset = self.settings.window, self.offsets[member.name]
        turn = self.round if window.schedule == "together" else self.top() if window.schedule == "growing" else cycle
        start = window_start(window.schedule, self.dispatched, blocks, turn, offset, window.first)
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
        """What a mask phase may take: to train them all that the device has, for scores what the training takes."""
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
        if order.trainer == StatisticsTrainer.name:
            self.reported.add(order.client)
        if order.trainer in (SubmodelTrainer.name, FactoredTrainer.name):
            self.merged += 1
        if order.trainer == SubmodelTrainer.name:
            self.masks[update.client] |= dict(enumerate(update.spec.window, update.spec.frozen))

    def state(self) -> tuple[dict[str, Any], Weights]:
        masks = {
            name: {str(block): [list(keep.heads), list(keep.units)] for block, keep in blocks.items()}
            for name, blocks in self.masks.items()
        }
        values = {"masks": masks, "dispatched": self.dispatched, "reported": sorted(self.reported), "round": self.round}
        return values | {"merged": self.merged}, {}

    def load_state(self, values: Mapping[str, Any], tensors: Weights) -> None:
        for name, blocks in values["masks"].items():
            kept = {int(block): BlockKeep.of(*keep) for block, keep in blocks.items()}
            if name in self.cuts:  # a mask from before the client's rate was lowered is too large for it now
                member = self.context.members[name]
                self.masks[name] = {b: keep for b, keep in kept.items() if within(keep, self.quota(member, b))}
        self.dispatched = list(values["dispatched"])
        self.reported, self.round = set(values["reported"]), int(values["round"])
        self.merged = int(values.get("merged", 0))
