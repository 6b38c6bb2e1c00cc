"""Which segments an update holds, counted over the updates of a round."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from cos2p.models.config import ModelConfig
from cos2p.models.spec import SubmodelSpec
from cos2p.submodel.segments import SegmentValues, full_length, segment_key, segment_positions


def held_segments(config: ModelConfig, spec: SubmodelSpec, names: Iterable[str]) -> SegmentValues:
    """A one for every segment of the tensors `names`, as far as the spec keeps it."""
    ones: SegmentValues = {}
    for key in dict.fromkeys(segment_key(config, name) for name in names):
        positions = segment_positions(config, spec, key)
        ones[key] = torch.ones(()) if positions is None else torch.ones(len(positions))
    return ones


def add_at_segments(into: SegmentValues, values: SegmentValues, config: ModelConfig, spec: SubmodelSpec) -> None:
    """Add a submodel's numbers to those of the full model, in place."""
    for key, value in values.items():
        positions, length = segment_positions(config, spec, key), full_length(config, key)
        if positions is None or length is None:
            into[key] = into[key] + value if key in into else value.clone()
        else:
            into.setdefault(key, torch.zeros(length)).index_add_(0, positions, value)
