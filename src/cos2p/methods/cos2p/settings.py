"""The `[method]` table of Co-S²P, and the forms in which it begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from cos2p.aggregation.weights import Rule
from cos2p.messages import Precision
from cos2p.methods.cos2p.factored import FactorSettings
from cos2p.methods.head_settings import HeadSettings
from cos2p.settings import Settings, merged_tables
from cos2p.submodel.window import Schedule
from cos2p.training.settings import Distillation, FeatureCache, MaskTraining

Form = Literal["paper", "cheap", "growing", "pretrained"]
MaskKind = Literal["trainable", "first-order", "fixed", "random", "magnitude"]
LEARNED: frozenset[MaskKind] = frozenset({"trainable", "first-order"})
Suffix = Literal["removed", "streamed", "thin"]

FORMS: Mapping[str, Mapping[str, Any]] = {
    "paper": {},
    "cheap": {
        # One pass over a quarter of the samples, and nothing is trained: no worse where it was measured.
        "masks": {"heads": "first-order", "units": "first-order", "share": 0.25, "memory": "training"},
        "prefix": {"precision": "int8"},
    },
    "growing": {
        # Few blocks that all devices train learn more in a run than many that each of them visits now and then.
        "window": {"schedule": "growing", "ratio": 4},
        "exits": {"kind": "none"},
        "masks": {"heads": "random", "units": "random"},
        "rescale": True,
    },
    "pretrained": {
        # Exits from the features as they are, and at the end as they were trained: a trained one falls behind them. The
        # loss at the true top, where they read them.
        "exits": {"start": "discriminant", "finish": "as-start", "kind": "none"},
        "window": {"rest": "kept", "suffix": "streamed", "schedule": "together"},
        "masks": {"heads": "random", "units": "random"},
    },
}
"""What a form sets other than the fields' own defaults; docs/results/rival.md and pretrained.md have the reasons."""


class MaskSettings(MaskTraining):
    """Width: which heads and units a device keeps of the blocks in its window."""

    heads: MaskKind = Field(
        default="trainable",
        description="`trainable` on local data; `first-order`: those whose removal changes the loss most, by the |w·g| "
        "of one pass over local data; `fixed`: drawn once; `random`: drawn every task; `magnitude`: those "
        "with the largest weights in the server's model.",
    )
    units: MaskKind = Field(default="trainable", description="Likewise for the MLP units.")
    rounds: int = Field(default=20, ge=0, description="Q̂: rounds in which masks train; later only at first visits.")
    start: Literal["even", "first-order"] = Field(
        default="even",
        description="Importances of a block that a device meets first: all alike, or first-order scores of one pass.",
    )
    candidates: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Share of the segments beyond the device's own that a mask phase chooses from, others in every "
        "task: fewer are sent and run. 1: all.",
    )
    memory: Literal["device", "training"] = Field(
        default="device",
        description="What a mask phase may take: all that the device has, or no more than the training after it; then "
        "fewer samples pass at a time, with the same gradients.",
    )
    settled: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="A block's mask stands once two phases agree on this share of it, by parameters; 0: it trains "
        "again as long as `rounds` says.",
    )
    warmup: int = Field(
        default=0, ge=0, description="Rounds with fixed masks before they train: the weights they judge by come first."
    )

    @property
    def learned(self) -> frozenset[MaskKind]:
        """Kinds that devices choose by their data, in a phase before they train."""
        return frozenset({self.heads, self.units}) & LEARNED


class ExitSettings(Distillation, HeadSettings):
    """Exits along the depth and self-distillation between them."""

    kind: Literal["tiers", "none"] = Field(
        default="tiers",
        description="`tiers`: an exit wherever a smaller device's window would end; `none`: the top only.",
    )
    probe: int = Field(
        default=0,
        ge=0,
        description="Rounds at first in which only the top exit trains, on the features of the model as it came: for "
        '`start = "fresh"` where devices are not to tell sums of their features; 2 to 5.',
    )


class WindowSettings(Settings):
    """Depth: how the trainable window moves and what shape it has."""

    schedule: Schedule = Field(
        default="rolling",
        description="`rolling` (the paper's): one block up with each task; `dwell`: the outermost blocks as often as "
        "the others; `balanced`: where blocks were given out least; `priced`: nearly so, with low windows for devices "
        "to which frozen blocks cost most time and high ones for the others; `together`: all devices at the same "
        "blocks in a round, from the top down; `upper`: higher blocks more often; `fixed`: where the device began; "
        "`top`; `growing`: all end at the same height, which rises from the bottom, and blocks above it pass on what "
        "they get until they are reached.",
    )
    stay: float = Field(
        default=0.5, ge=0, lt=1, description="Of `growing`: the share of the run before windows begin to rise."
    )
    first: int = Field(
        default=0,
        ge=0,
        description="The first block that trains: windows stay above it where they fit, 0 to depth − 1.",
    )
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
    holder_exponent: float = Field(
        default=0.0,
        ge=0,
        description="b of a factor (h/h_max)^b on the merged step of a segment that h devices of a round held; 0: none,"
        " 1: half of the holders, half of the step.",
    )
    momentum: float = Field(default=0.0, ge=0, lt=1, description="Server momentum on the merged step, 0 to 0.9.")


class Cos2pSettings(Settings):
    form: Form = Field(
        default="paper",
        description="Where the fields below begin. `paper`: a model that learns from scratch, as published; `cheap`: "
        "the same in fewer seconds and bytes; `growing`: from scratch, one block after the other; `pretrained` (the "
        "default with `model.pretrained`): one whose parts rely on each other, so that what does not train stays in "
        "its place.",
    )
    masks: MaskSettings = MaskSettings()
    exits: ExitSettings = ExitSettings()
    window: WindowSettings = WindowSettings()
    prefix: PrefixSettings = PrefixSettings()
    factors: FactorSettings = FactorSettings()
    weighting: WeightingSettings = WeightingSettings()
    rescale: bool = Field(default=False, description="Training-time 1/(kept share) on attention and MLP outputs.")

    @model_validator(mode="before")
    @classmethod
    def _begin_from_form(cls, values: Any) -> Any:
        """Fields that are not given are the form's; so all of them stand in the recipe that a run writes down."""
        if not isinstance(values, Mapping):
            return values
        return merged_tables(FORMS.get(str(values.get("form", "paper")), {}), values)

    @model_validator(mode="after")
    def _consistent(self) -> Cos2pSettings:
        if self.masks.learned == {"trainable", "first-order"}:
            raise ValueError(
                "masks.heads and masks.units are learned in one phase: both 'trainable' or both 'first-order' "
                "(masks.start = 'first-order' trains from such scores)"
            )
        if self.window.rest == "kept" and self.masks.learned:
            raise ValueError(
                "window.rest 'kept' leaves every head and unit in its place, so masks have nothing to remove; "
                "set masks.heads and masks.units to 'fixed', 'random' or 'magnitude': what they name is what trains"
            )
        if self.exits.probe and self.window.suffix != "streamed":
            raise ValueError(
                f"exits.probe trains the top exit; with window.suffix {self.window.suffix!r} windows end elsewhere; "
                "set window.suffix = 'streamed' or exits.probe = 0"
            )
        if self.window.schedule == "growing" and (self.window.suffix != "removed" or self.window.first):
            raise ValueError(
                "window.schedule 'growing' builds a fresh model from its lowest block on, with nothing above the "
                "windows yet; set window.suffix = 'removed' and window.first = 0, or another schedule"
            )
        if self.window.schedule == "growing" and self.factors.below:
            raise ValueError(
                "factors move all blocks of a model that has learned, and window.schedule 'growing' begins with empty "
                "ones; set factors.below = 0, or another schedule"
            )
        if self.window.rest == "kept" and self.rescale:
            raise ValueError("rescale makes up for what is removed; with window.rest 'kept' nothing is")
        return self
