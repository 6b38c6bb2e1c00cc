"""Settings of the local trainer: what a device does with a task. Part of every task, as JSON."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cos2p.messages import LabelSkew
from cos2p.settings import Settings
from cos2p.training.distillation import Direction
from cos2p.training.masks import FinalMask
from cos2p.training.prefix import FeaturePrecision, Store

OptimizerName = Literal["adan", "adamw", "sgd"]


class MaskPhase(Settings):
    """Training of the width masks, before the weights."""

    epochs: int = Field(default=5, ge=0, description="Ê: passes over the local data for the masks, 1 to 10.")
    lr: float = Field(default=1e-2, gt=0, description="η̂: learning rate of the importances, 1e-3 to 1e-1.")
    lambda1: float = Field(default=1.0, ge=0, description="λ1: pull of the expected size towards R_width, 0 to 2.")
    optimizer: OptimizerName = Field(default="adan", description="Optimiser of the importances.")
    heads: bool = Field(default=True, description="Train the masks of the attention heads.")
    units: bool = Field(default=True, description="Train the masks of the MLP units.")
    final: FinalMask = Field(default="top", description="Keep the most important segments, or a draw by importance.")
    micro_batch: int = Field(default=0, ge=0, description="Samples per pass in the mask phase; 0: the whole batch.")


class LocalSettings(Settings):
    """One task's training on a device."""

    epochs: int = Field(default=5, ge=1, description="E: passes over the local data.")
    batch: int = Field(default=32, ge=1, description="Samples per step.")
    optimizer: OptimizerName = Field(default="adan", description="Fresh at every task; its state never travels.")
    weight_decay: float = Field(default=0.0, ge=0, description="Decoupled weight decay, 0 to 0.1.")
    rescale: bool = Field(default=False, description="Training-time 1/(kept share) on attention and MLP outputs.")
    lambda2: float = Field(default=0.2, ge=0, le=1, description="λ2: weight of self-distillation against the labels.")
    temperature: float = Field(default=3.0, gt=0, description="t: softness of teacher and students, 1 to 5.")
    direction: Direction = Field(default="student-teacher", description="Which way the KL divergence is taken.")
    features: Store = Field(default="memory", description="Where the features behind the frozen prefix are kept.")
    feature_precision: FeaturePrecision = Field(default="float32", description="float16 halves the cache.")
    mask: MaskPhase = MaskPhase()


class TrainingSettings(Settings):
    """Local training, the same for every method."""

    epochs: int = Field(default=5, ge=1, description="E: passes over the local data per task.")
    optimizer: OptimizerName = Field(default="adan", description="adan (the paper's), adamw or sgd.")
    lr: float = Field(default=2e-3, gt=0, description="η at the start of the run.")
    lr_schedule: Literal["cosine", "constant"] = Field(default="cosine", description="Over the whole run.")
    lr_floor: float = Field(default=0.0, ge=0, le=1, description="Where the cosine ends, as a share of lr.")
    weight_decay: float = Field(default=0.0, ge=0, description="Decoupled weight decay, 0 to 0.1.")
    label_skew: LabelSkew = Field(
        default="ignored",
        description="`corrected`: devices add log(share of each class in their data) to the logits while they train.",
    )
