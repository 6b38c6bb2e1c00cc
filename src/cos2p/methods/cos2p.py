"""Co-S²P: rolling depth windows, trained width masks, self-distillation, semi-asynchronous segment-wise merging.

Sections III–IV and Algorithms 1–2 of "Unity is Power". Where the paper leaves a point open, docs/explanation says what
is done here and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator

from cos2p.aggregation.merge import Merge, SegmentMerge
from cos2p.aggregation.rules import Redispatch
from cos2p.aggregation.triggers import Trigger
from cos2p.aggregation.weights import Rule
from cos2p.costs.budget import mask_plan, peak
from cos2p.messages import Order, Precision, Update
from cos2p.methods.base import Assignment, Call, Forms, Member, Method, RunContext
from cos2p.models.layout import Weights
from cos2p.models.spec import BlockKeep, BlockSize, SubmodelSpec
from cos2p.seeding import torch_rng
from cos2p.settings import Settings, shared
from cos2p.submodel.rates import SubmodelSize, cut, spread
from cos2p.submodel.window import Schedule, exit_depths, tier_offsets, window_start
from cos2p.training.costs import workload
from cos2p.training.masks import random_keep
from cos2p.training.settings import Distillation, FeatureCache, LocalSettings, MaskPhase, MaskTraining

MaskKind = Literal["trainable", "fixed", "random"]
Suffix = Literal["removed", "streamed", "thin"]


class MaskSettings(MaskTraining):
    """Width: which heads and units a device keeps of the blocks in its window."""

    heads: MaskKind = Field(
        default="trainable", description="`trainable` on local data; `fixed`: drawn once; `random`: drawn every task."
    )
    units: MaskKind = Field(default="trainable", description="Likewise for the MLP units.")
    rounds: int = Field(default=20, ge=0, description="Q̂: rounds in which masks train; later only at first visits.")
    warmup: int = Field(
        default=0, ge=0, description="Rounds with fixed masks before they train: the weights they judge by come first."
    )


class ExitSettings(Distillation):
    """Exits along the depth and self-distillation between them."""

    kind: Literal["tiers", "none"] = Field(
        default="tiers",
        description="`tiers`: an exit wherever a smaller device's window would end; `none`: the top only.",
    )


class WindowSettings(Settings):
    """Depth: how the trainable window moves and what shape it has."""

    schedule: Schedule = Field(default="rolling", description="`rolling` (the paper's), `dwell` or `balanced`.")
    ratio: float = Field(
        default=1.0, ge=0, description="R_width / R_depth: 1 balanced; 4 half as deep and twice as wide; 0 only width."
    )
    rest: Literal["removed", "kept"] = Field(
        default="removed",
        description="Heads and units of the window's blocks that do not train: removed (a smaller model), or `kept` in "
        "their place, frozen (a pretrained model).",
    )
    suffix: Suffix = Field(
        default="removed",
        description="The blocks above the window: `removed`, with an exit in their place (the paper's form); "
        "`streamed`: frozen, one in memory at a time, the loss at the true top; `thin`: a small share of their width, "
        "trained along.",
    )
    thin_share: float = Field(
        default=0.125, gt=0, le=1, description="Share of the width that the blocks of a `thin` suffix have."
    )


class PrefixSettings(FeatureCache):
    """The frozen blocks below the window."""

    width: Literal["full", "cut"] = Field(default="full", description="`cut`: by the device's own masks.")
    precision: Precision = Field(default="float16", description="On the wire: float32, float16 or int8.")
    shelf: bool = Field(
        default=False,
        description="Devices keep frozen parts and the features behind them on disk between tasks: what has not "
        "changed is neither sent nor computed again.",
    )
    drift: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="With `shelf`: how far a part may have moved since it was sent, as a share of its norm (the steps "
        "it took, added up), and still serve; 0: not at all.",
    )


class WeightingSettings(Settings):
    """How much an update counts."""

    rule: Rule = Field(default="paper", description="γ as in the paper; `relative`, `uniform` or `samples`.")
    staleness_exponent: float = Field(default=0.0, ge=0, description="a of a further factor (1+τ)^(−a); 0: none.")
    step_exponent: float = Field(
        default=0.0, ge=0, description="b of a factor (1+τ)^(−b) on the stale update itself; 0: the paper's form."
    )
    momentum: float = Field(default=0.0, ge=0, lt=1, description="Server momentum on the merged step, 0 to 0.9.")


class Cos2pSettings(Settings):
    masks: MaskSettings = MaskSettings()
    exits: ExitSettings = ExitSettings()
    window: WindowSettings = WindowSettings()
    prefix: PrefixSettings = PrefixSettings()
    weighting: WeightingSettings = WeightingSettings()
    rescale: bool = Field(default=False, description="Training-time 1/(kept share) on attention and MLP outputs.")

    @model_validator(mode="after")
    def _consistent(self) -> Cos2pSettings:
        if self.window.rest == "kept" and "trainable" in (self.masks.heads, self.masks.units):
            raise ValueError(
                "window.rest 'kept' leaves every head and unit in its place, so masks have nothing to remove; "
                "set masks.heads and masks.units to 'fixed' or 'random': what they name is what trains"
            )
        if self.window.rest == "kept" and self.rescale:
            raise ValueError("rescale makes up for what is removed; with window.rest 'kept' nothing is")
        return self


class Cos2p(Method):
    name: ClassVar[str] = "cos2p"
    title: ClassVar[str] = "Co-S²P"
    settings_type: ClassVar[type[Settings]] = Cos2pSettings
    settings: Cos2pSettings
    forms: ClassVar[Forms] = {
        "scaler": ("method.rescale=true",),
        "wide windows": ("method.rescale=true", "method.window.ratio=4"),
    }

    def __init__(self, settings: Settings, context: RunContext) -> None:
        super().__init__(settings, context)
        self.cuts: dict[str, SubmodelSize] = {
            name: cut(context.config, member.rate, self.settings.window.ratio)
            for name, member in context.members.items()
        }
        depths = [shape.blocks for shape in self.cuts.values()]
        offsets = tier_offsets(self.settings.window.schedule, context.config.depth, depths)
        self.offsets = dict(zip(self.cuts, offsets, strict=True))
        self.masks: dict[str, dict[int, BlockKeep]] = {name: {} for name in context.members}
        """Each client's last mask of each block, as its updates told."""
        self.dispatched = [0] * context.config.depth
        """How many tasks had each block in their window."""

    def rules(self) -> tuple[Trigger, Redispatch]:
        schedule = self.context.schedule
        return Trigger.semi_asynchronous(schedule.mu, schedule.t_clk), schedule.redispatch

    def merge(self) -> Merge:
        weighting = self.settings.weighting
        return SegmentMerge(
            self.context.config,
            weighting.rule,
            weighting.staleness_exponent,
            weighting.momentum,
            weighting.step_exponent,
        )

    # ------------------------------------------------------------ which submodel

    def assign(self, call: Call) -> Assignment:
        member, settings = call.member, self.settings
        blocks = self.next_blocks(member, call.cycle)
        start = blocks.start
        for block in blocks:
            self.dispatched[block] += 1
        quotas = tuple(self.quota(member, block) for block in blocks)
        window = tuple(self._kept(call, block, quota) for block, quota in zip(blocks, quotas, strict=True))
        prefix = None
        if settings.prefix.width == "cut":
            prefix = tuple(self._kept(call, block, self.quota(member, block)) for block in range(start))
        spec = self._with_suffix(call, SubmodelSpec(start, window, self._exits(start, len(blocks)), prefix))
        spec = self.context.tables(spec, member)
        local = self._local(member)
        trains_masks = self._trains_masks(member, blocks, call.version)
        if trains_masks:
            spec, local = self._with_candidates(call, spec, local)
        return Assignment(
            spec,
            local,
            quotas=_quotas(spec, quotas) if trains_masks else None,
            prefix_precision=settings.prefix.precision,
            drift=settings.prefix.drift if settings.prefix.shelf else None,
        )

    def next_blocks(self, member: Member, cycle: int) -> range:
        blocks = self.cuts[member.name].blocks
        schedule, offset = self.settings.window.schedule, self.offsets[member.name]
        start = window_start(schedule, self.dispatched, blocks, cycle, offset)
        return range(start, start + blocks)

    def _exits(self, start: int, blocks: int) -> tuple[int, ...]:
        if self.settings.window.suffix != "removed":  # an exit below pretrained blocks would tear them off their inputs
            return (self.context.config.depth,)
        tiers = [c.blocks for c in self.cuts.values()] if self.settings.exits.kind == "tiers" else []
        return exit_depths(start, blocks, tiers)

    def _with_suffix(self, call: Call, spec: SubmodelSpec) -> SubmodelSpec:
        """What stands above the window, and what stays inside it."""
        config, window = self.context.config, self.settings.window
        rest = window.rest == "kept"
        if window.suffix != "thin":
            return replace(spec, rest=rest, suffix=window.suffix == "streamed")
        thin = BlockSize(*(max(1, int(window.thin_share * size)) for size in (config.groups, config.mlp)))
        above = tuple(self._thinned(call, block, thin) for block in range(spec.top, config.depth))
        return replace(spec, rest=rest, window=spec.window + above)

    def _thinned(self, call: Call, block: int, size: BlockSize) -> BlockKeep:
        rng = torch_rng(self.context.seed, "thin block", call.member.name, block, call.attempt)
        return random_keep(self.context.config, size, rng)

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
        if "trainable" not in (masks.heads, masks.units) or masks.epochs == 0:
            return False
        return any(self._undecided(member, block, version) for block in blocks)

    def _undecided(self, member: Member, block: int, version: int) -> bool:
        """Whether a client may still choose what it keeps of a block: in the first rounds, and at its first visit."""
        masks = self.settings.masks
        if version < masks.warmup:
            return False
        return version < masks.warmup + masks.rounds or block not in self.masks[member.name]

    def _with_candidates(
        self, call: Call, spec: SubmodelSpec, local: LocalSettings
    ) -> tuple[SubmodelSpec, LocalSettings]:
        """Widen the undecided blocks to what the mask phase may choose from: all of it, or what the memory allows.

        Where not all fits, the client's present mask stays and the others take turns from task to task.
        """
        config, member, masks = self.context.config, call.member, self.settings.masks
        work = workload(local, member.samples)
        memory = member.device.memory
        if not self.context.enforce_memory:  # then at least what the training itself takes
            memory = max(memory, peak(config, spec, work).total)
        plan = mask_plan(config, spec, work, memory)
        window = []
        for block, keep, heads, units in zip(
            range(spec.frozen, spec.top), spec.window, plan.heads, plan.units, strict=True
        ):
            own = block < spec.frozen + self.cuts[member.name].blocks  # not of a thin suffix
            if not own or not self._undecided(member, block, call.version):
                window.append(keep)
                continue
            rng = torch_rng(self.context.seed, "candidates", member.name, block, call.attempt)
            window.append(
                BlockKeep(
                    _widen(keep.heads, config.groups, heads, rng) if masks.heads == "trainable" else keep.heads,
                    _widen(keep.units, config.mlp, units, rng) if masks.units == "trainable" else keep.units,
                )
            )
        phase = local.mask.model_copy(update={"micro_batch": plan.micro_batch})
        return replace(spec, window=tuple(window)), local.model_copy(update={"mask": phase})

    def _kept(self, call: Call, block: int, quota: BlockSize) -> BlockKeep:
        """The client's mask of a block: the trained one if there is one, else a draw."""
        config, name, masks = self.context.config, call.member.name, self.settings.masks
        fixed = random_keep(config, quota, torch_rng(self.context.seed, "fixed mask", name, block))
        fresh = random_keep(config, quota, torch_rng(self.context.seed, "random mask", name, block, call.attempt))
        learned = self.masks[name].get(block, fixed)
        choice = {"trainable": learned, "fixed": fixed, "random": fresh}
        return BlockKeep(choice[masks.heads].heads, choice[masks.units].units)

    def _local(self, member: Member) -> LocalSettings:
        masks, exits = self.settings.masks, self.settings.exits
        changes = {
            **shared(exits, Distillation),
            **shared(self.settings.prefix, FeatureCache),
            "rescale": self.settings.rescale,
            "mask": MaskPhase(
                **shared(masks, MaskTraining), heads=masks.heads == "trainable", units=masks.units == "trainable"
            ),
        }
        if exits.kind == "none":
            changes["lambda2"] = 0.0
        return self.context.local(member, **changes)

    # ------------------------------------------------------------ what the server remembers

    def accepted(self, order: Order, update: Update) -> None:
        if order.version < self.settings.masks.warmup:
            return  # not the client's choice yet
        own = update.spec.window[: self.cuts[update.client].blocks]  # not what a thin suffix had
        self.masks[update.client] |= dict(enumerate(own, update.spec.frozen))

    def state(self) -> tuple[dict[str, Any], Weights]:
        masks = {
            name: {str(block): [list(keep.heads), list(keep.units)] for block, keep in blocks.items()}
            for name, blocks in self.masks.items()
        }
        return {"masks": masks, "dispatched": self.dispatched}, {}

    def load_state(self, values: Mapping[str, Any], tensors: Weights) -> None:
        for name, blocks in values["masks"].items():
            kept = {int(block): BlockKeep.of(*keep) for block, keep in blocks.items()}
            if name in self.cuts:  # a mask from before the client's rate was lowered is too large for it now
                member = self.context.members[name]
                self.masks[name] = {b: keep for b, keep in kept.items() if _within(keep, self.quota(member, b))}
        self.dispatched = list(values["dispatched"])


def _quotas(spec: SubmodelSpec, own: tuple[BlockSize, ...]) -> tuple[BlockSize, ...]:
    """What may be kept of each block: of a thin suffix all that is sent."""
    thin = spec.window[len(own) :]
    return own + tuple(BlockSize(len(keep.heads), len(keep.units)) for keep in thin)


def _within(keep: BlockKeep, quota: BlockSize) -> bool:
    return len(keep.heads) <= quota.heads and len(keep.units) <= quota.units


def _widen(kept: tuple[int, ...], segments: int, count: int, rng: torch.Generator) -> tuple[int, ...]:
    """`count` segments: those kept, and others drawn at random."""
    if count >= segments:
        return tuple(range(segments))
    own = set(kept)
    others = [s for s in torch.randperm(segments, generator=rng).tolist() if s not in own]
    return tuple(sorted([*kept, *others[: max(0, count - len(kept))]]))


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
