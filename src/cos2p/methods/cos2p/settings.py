"""The `[method]` table of Co-S²P, and the forms in which it begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from cos2p.aggregation.weights import Rule
from cos2p.messages import Precision
from cos2p.methods.base import HeadSettings
from cos2p.methods.cos2p.factored import FactorSettings
from cos2p.settings import Settings, merged_tables
from cos2p.submodel.rates import Schedule
from cos2p.training.prefix import Store
from cos2p.training.settings import Auto, Distillation, FeatureCache, MaskTraining

Form = Literal["paper", "cheap", "growing", "pretrained"]
MaskKind = Literal["trainable", "first-order", "fixed", "random"]
LEARNED: frozenset[MaskKind] = frozenset({"trainable", "first-order"})

FORMS: Mapping[str, Mapping[str, Any]] = {
    "paper": {},
    "cheap": {
        # One pass over a quarter of the samples, and nothing is trained: no worse where it was measured.
        "masks": {"heads": "first-order", "units": "first-order"},
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
        "window": {"rest": "kept", "schedule": "together"},
        "masks": {"heads": "random", "units": "random"},
    },
}
"""The values of a form that differ from the fields' own defaults; docs/results/rival.md and pretrained.md have the
reasons."""


class MaskSettings(MaskTraining):
    """Width: which heads and units a device keeps of the blocks in its window."""

    heads: MaskKind = Field(
        default="trainable",
        description="`trainable` on local data; `first-order`: those whose removal changes the loss most, by the |w·g| "
        "of one pass over a quarter of the local data, in no more memory than the training; `fixed`: drawn once; "
        "`random`: drawn every task.",
    )
    units: MaskKind = Field(default="trainable", description="Likewise for the MLP units.")
    rounds: int = Field(default=20, ge=0, description="Q̂: rounds in which masks train; later only at first visits.")

    @property
    def learned(self) -> frozenset[MaskKind]:
        """Kinds that devices choose by their data, in a phase before they train."""
        return frozenset({self.heads, self.units}) & LEARNED

    @property
    def by_scores(self) -> bool:
        """Whether what is learned comes from one pass, without training."""
        return "first-order" in self.learned


class ExitSettings(Distillation, HeadSettings):
    """Exits along the depth and self-distillation between them."""

    kind: Literal["tiers", "none"] = Field(
        default="tiers",
        description="`tiers`: an exit wherever a smaller device's window would end; `none`: the top only.",
    )


class WindowSettings(Settings):
    """Depth: how the trainable window moves and what shape it has."""

    schedule: Schedule = Field(
        default="rolling",
        description="`rolling` (the paper's): one block up with each task; `balanced`: where blocks were given out "
        "least; `together`: all devices at the same blocks in a round, from the top down; `top`; `growing`: all end at "
        "the same height, which rises from the bottom, and blocks above it pass on what they get until they are "
        "reached.",
    )
    first: Auto | Annotated[int, Field(ge=0)] = Field(
        default="auto",
        description="The first block that trains: windows stay above it where they fit, 0 to depth − 1. `auto`: 0, or "
        "of a model whose rest is kept the middle: the features below are computed once a task.",
    )
    ratio: float = Field(
        default=1.0, ge=0, description="R_width / R_depth: 1 balanced; 4 half as deep and twice as wide; 0 only width."
    )
    rest: Literal["removed", "kept"] = Field(
        default="removed",
        description="What does not train: `removed` (the paper's form, a smaller model with an exit in place of the "
        "blocks above); or `kept` in its place, frozen (a pretrained model): heads and units of the window's blocks, "
        "and the blocks above, one in memory at a time, with the loss at the true top.",
    )


class PrefixSettings(FeatureCache):
    """The frozen blocks below the window."""

    features: Auto | Store = Field(default="auto", description="Where a device keeps its features: memory or disk.")
    precision: Precision = Field(default="float16", description="On the wire: float32, float16 or int8.")


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
    weighting: Rule = Field(
        default="paper",
        description="How much an update counts: γ as in the paper; `uniform`: all alike; `samples`: by their number.",
    )
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
                "masks.heads and masks.units are learned in one phase: both 'trainable' or both 'first-order'"
            )
        if self.window.rest == "kept" and self.masks.learned:
            raise ValueError(
                "window.rest 'kept' leaves every head and unit in its place, so masks have nothing to remove; "
                "set masks.heads and masks.units to 'fixed' or 'random': what they name is what trains"
            )
        if self.window.schedule == "growing" and (
            self.window.rest != "removed" or self.window.first not in (0, "auto")
        ):
            raise ValueError(
                "window.schedule 'growing' builds a fresh model from its lowest block on, with nothing above the "
                "windows yet; set window.rest = 'removed' and window.first = 0, or another schedule"
            )
        if self.window.schedule == "growing" and self.factors.below not in (0, "auto"):
            raise ValueError(
                "factors move all blocks of a model that has learned, and window.schedule 'growing' begins with empty "
                "ones; set factors.below = 0, or another schedule"
            )
        if self.window.rest == "kept" and self.rescale:
            raise ValueError("rescale makes up for what is removed; with window.rest 'kept' nothing is")
        return self
