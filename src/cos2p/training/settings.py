"""Settings of the local trainer: what a device does with a task. Part of every task, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from cos2p.messages import LabelSkew, Precision, Wire
from cos2p.numerics.optimizers import eight_bit
from cos2p.settings import Settings
from cos2p.training.embeddings import Embeddings
from cos2p.training.prefix import FeaturePrecision, Store
from cos2p.training.rate_trial import FALLBACK, LADDERS

OptimizerName = Literal["adan", "adamw", "sgd"]


Auto = Literal["auto"]
"""Left to the planner (`memory.ways`): the quickest way in which a task fits its device."""


class MemoryOptimizations(Settings):
    """Training in fewer bytes, the same for every method; the ledger counts what each takes off."""

    stream: Auto | bool = Field(
        default="auto",
        description="Frozen blocks with adapters are read from disk whenever they run, one in memory at a time, "
        "instead of held: the same bits in 1.5 to 2 times the time.",
    )
    step_in_backward: Auto | bool = Field(
        default="auto",
        description="Step with each gradient as soon as it is there, and drop it: the same bits. Trainers that look at "
        "all gradients of a step (PLATON, PruneFL, FedAsync's own) keep them.",
    )
    eight_bit: Auto | bool = Field(
        default="auto",
        description="Optimiser states of adan and adamw in blocks of 8 bits. `auto`: where nothing else fits.",
    )
    recompute: Literal["auto", "no", "yes"] = Field(
        default="auto",
        description="Blocks keep their input alone and run again in the backward: the same bits, a third more FLOPs.",
    )
    micro_batch: Auto | Annotated[int, Field(ge=0)] = Field(
        default="auto",
        description="So many samples of a batch pass the model at a time, and their gradients add up: the same step, "
        "but for rounding, with fewer activations; 0: all of them. Trainers with "
        "an objective or a loop of their own (AdaViT, Q-ViT, FedMeZO) take all.",
    )

    @model_validator(mode="after")
    def _agree(self) -> MemoryOptimizations:
        if self.micro_batch not in (0, "auto") and self.step_in_backward is True:
            raise ValueError(
                "the gradients of micro_batch add up before the step, and step_in_backward drops each at once; set one "
                "of them"
            )
        return self

    def at_once(self, batch: int) -> int:
        """Samples of a batch that pass the model at a time."""
        return batch if self.micro_batch == "auto" else min(self.micro_batch or batch, batch)

    @property
    def settled(self) -> MemoryOptimizations:
        """With nothing saved where that is left open."""
        return self.model_copy(update={name: value for name, value in _PLAIN.items() if getattr(self, name) == "auto"})


_PLAIN: dict[str, Any] = {
    "stream": False,
    "step_in_backward": False,
    "eight_bit": False,
    "recompute": "no",
    "micro_batch": 0,
}
PLAIN = MemoryOptimizations(**_PLAIN)
"""Nothing is saved."""


class LocalTraining(Settings):
    """How long and by what a device trains: the recipe's, and a part of every task."""

    epochs: int = Field(default=5, ge=1, description="E: passes over the local data per task.")
    optimizer: OptimizerName = Field(default="adan", description="adan (the paper's), adamw or sgd; fresh every task.")
    weight_decay: float = Field(default=0.0, ge=0, description="Decoupled weight decay, 0 to 0.1.")
    memory_optimizations: MemoryOptimizations = PLAIN

    @model_serializer(mode="wrap")
    def _terse(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without memory optimisations that are off: every task carries these settings, and its bytes count."""
        written: dict[str, Any] = handler(self)
        if self.memory_optimizations == type(self).model_fields["memory_optimizations"].default:
            written.pop("memory_optimizations", None)
        return written

    @property
    def stepper(self) -> str:
        """The optimiser by its full name, a key of `numerics.optimizers.STATE_BYTES`."""
        return eight_bit(self.optimizer) if self.memory_optimizations.eight_bit is True else self.optimizer


class Distillation(Settings):
    """Self-distillation between the exits."""

    lambda2: float = Field(default=0.2, ge=0, le=1, description="λ2: weight of distillation; 0: labels alone.")
    temperature: float = Field(default=3.0, gt=0, description="t: softness of the distributions, 1 to 5.")


class FeatureCache(Settings):
    """The features behind the frozen prefix."""

    features: Auto | Store = Field(default="memory", description="Where a device keeps its features: memory or disk.")
    feature_precision: FeaturePrecision = Field(default="float32", description="float16 halves the cache.")

    @property
    def store(self) -> Store:
        return "memory" if self.features == "auto" else self.features


class MaskTraining(Settings):
    """Training of the width masks, before the weights."""

    epochs: int = Field(default=5, ge=0, description="Ê: passes over the local data for the masks, 1 to 10.")
    lr: float = Field(default=1e-2, gt=0, description="η̂: learning rate of the importances, 1e-3 to 1e-1.")
    lambda1: float = Field(default=1.0, ge=0, description="λ1: pull of the expected size towards R_width, 0 to 2.")


class WireSettings(Settings):
    """How what trains travels, the same for every method: matrices in fewer bits, vectors in 32."""

    down: Precision = Field(
        default="float32",
        description="The weights to a device: float32, float16 or int8 (a scale for each row). It trains, and reports "
        "its update, from what it received.",
    )
    up: Precision = Field(
        default="float32", description="The updates back: float32, float16, or int8, rounded at random without bias."
    )

    @property
    def of_orders(self) -> Wire:
        return Wire(self.down, self.up)


class MaskPhase(MaskTraining):
    """The mask phase of one task."""

    share: float = Field(
        default=1.0, gt=0, le=1, description="Share of the samples that the phase sees, drawn anew for every task."
    )
    scores: bool = Field(
        default=False,
        description="A pass before the epochs that sets importances by first-order scores, averaged with those of "
        "earlier tasks.",
    )
    heads: bool = Field(default=True, description="Train the masks of the attention heads.")
    units: bool = Field(default=True, description="Train the masks of the MLP units.")
    micro_batch: int = Field(default=0, ge=0, description="Samples per pass in the mask phase; 0: the whole batch.")

    @property
    def passes(self) -> int:
        """Over the samples that the phase sees, the scores' included."""
        return self.epochs + self.scores

    @model_serializer(mode="wrap")
    def _terse(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without what is not asked for: every task carries these settings, and its bytes count."""
        plain = {"share": 1.0, "scores": False}
        written: dict[str, Any] = handler(self)
        return {name: value for name, value in written.items() if name not in plain or value != plain[name]}


class LocalSettings(LocalTraining, Distillation, FeatureCache):
    """One task's training on a device. A trainer with settings of its own adds them in a derived class."""

    batch: int = Field(default=32, ge=1, description="Samples per step.")
    texts: tuple[int, int] = Field(
        default=(0, 0), description="Tokens of the device's longest text, and of all together, as batches hold them."
    )
    rescale: bool = Field(default=False, description="Training-time 1/(kept share) on attention and MLP outputs.")
    mask: MaskPhase = MaskPhase()


class ExtendedSettings(Settings):
    """The other way to add settings of a trainer's own: next to the plain ones."""

    local: LocalSettings


def with_local(settings: Settings, memory_optimizations: Mapping[str, object], **changes: object) -> Any:
    """The same training with these fields of its local settings and of their `memory_optimizations` changed."""
    local = settings.local if isinstance(settings, ExtendedSettings) else settings
    assert isinstance(local, LocalSettings)
    changed = local.model_copy(
        update={
            "memory_optimizations": local.memory_optimizations.model_copy(update=dict(memory_optimizations)),
            **changes,
        }
    )
    if changed == local:
        return settings
    return settings.model_copy(update={"local": changed}) if isinstance(settings, ExtendedSettings) else changed


def settled(settings: Settings, *without: str) -> Any:
    """The same training with nothing saved where that is left open, and without the optimizations that are named."""
    local = settings.local if isinstance(settings, ExtendedSettings) else settings
    assert isinstance(local, LocalSettings)
    memory_optimizations = local.memory_optimizations.settled.model_dump() | {
        name: getattr(PLAIN, name) for name in without
    }
    return with_local(settings, memory_optimizations, features="memory" if local.features == "auto" else local.features)


class TrainingSettings(LocalTraining):
    """Local training, the same for every method."""

    memory_optimizations: MemoryOptimizations = MemoryOptimizations()

    lr: Literal["auto"] | Annotated[float, Field(gt=0)] = Field(
        default=2e-3,
        description="η at the start of the run. `auto`: in its first training task every device tries a ladder of "
        "rates for a few steps each and reports the losses; the server takes a cautious middle for the rest of the "
        "run. Not with privacy: the losses would reveal the data.",
    )
    lr_schedule: Literal["cosine", "constant"] = Field(default="cosine", description="Over the whole run.")
    embeddings: Embeddings = Field(
        default="rows",
        description="Of the token tables a device has the `rows` that occur in its data and trains them; `frozen`: has "
        "them and leaves all embeddings as they are; `whole`: has and trains all rows.",
    )
    label_skew: LabelSkew = Field(
        default="ignored",
        description="`logit-adjustment` (Menon et al. 2021; balanced softmax of Ren et al. 2020): devices add "
        "log(share of each class in their data) to the logits while they train.",
    )
    wire: WireSettings = WireSettings()

    @property
    def first_lr(self) -> float:
        """The rate until one is found: that of the recipe, or a low one of those that are tried."""
        return LADDERS[self.optimizer][FALLBACK] if self.lr == "auto" else self.lr
