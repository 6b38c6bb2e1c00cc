"""How much an update counts, segment by segment.

The paper's importance (its Eq. for γ): the size of the update against how far the model has moved meanwhile,

    γ_n^i = ‖Δ_n^i‖₁ / (‖w_v^i − w_{v−τ}^i‖₁ + size(w^i))

with w_{v−τ} the version the device received. `uniform` and `samples` ignore the update's size.
"""

from __future__ import annotations

from typing import Literal

import torch

from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.models.spec import SubmodelSpec
from cos2p.submodel.kernels import Scratch
from cos2p.submodel.segments import SegmentValues, segment_drift, segment_norms, segment_positions, segment_sizes
from cos2p.submodel.slicing import window_slices

Rule = Literal["paper", "uniform", "samples"]

EVEN = ("uniform", "samples")
"""Rules by which all segments of an update weigh the same."""


def update_weights(
    rule: Rule,
    config: ModelConfig,
    spec: SubmodelSpec,
    delta: Weights,
    current: Weights,
    received: Weights,
    samples: int,
    scratch: Scratch | None = None,
) -> SegmentValues:
    """γ of every segment the update holds. `current` and `received` are full models (equal objects if τ = 0)."""
    sizes = segment_sizes(delta, config)
    if rule in EVEN:
        even = even_factor(rule, samples)
        return {key: torch.full(_shape(config, spec, key), even) for key in sizes}
    norms = segment_norms(delta, config, scratch)
    drift = _drift(config, spec, delta, current, received, scratch)
    return {key: value / (drift.get(key, 0.0) + sizes[key]) for key, value in norms.items()}


def even_factor(rule: Rule, samples: int) -> float:
    """γ of every segment, by a rule that knows but one for all of an update."""
    return 1.0 if rule == "uniform" else float(samples)


def even_weight(weight: float) -> dict[str, float]:
    """For the log: one weight for all of an update's segments, by the kind of segment."""
    return {"heads": weight, "units": weight, "shared": weight}


def _shape(config: ModelConfig, spec: SubmodelSpec, key: str) -> tuple[int, ...]:
    """One number for each kept segment; a single one for a shared tensor."""
    positions = segment_positions(config, spec, key)
    return () if positions is None else (len(positions),)


def _drift(
    config: ModelConfig,
    spec: SubmodelSpec,
    delta: Weights,
    current: Weights,
    received: Weights,
    scratch: Scratch | None,
) -> SegmentValues:
    """‖w_v − w_{v−τ}‖₁ per segment; tensors shared between the two versions did not move and cost nothing."""
    slices = window_slices(config, spec)
    moved = {name: slices[name] for name in delta if current[name] is not received[name]}
    return segment_drift(current, received, moved, config, scratch)
