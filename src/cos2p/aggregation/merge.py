"""Streaming merge: keep Σγ·Δ and Σγ per segment, add each update as it arrives, divide when the round closes.

Memory does not grow with the number of clients, and an update can be forgotten as soon as it was added. Segments that
nobody trained keep their values bitwise; where Σγ = 0 nothing moves either. A new version shares every tensor that did
not change with the old one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cos2p.aggregation.weights import Rule, update_weights
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.models.spec import SubmodelSpec
from cos2p.submodel.kernels import Scratch, add_scaled
from cos2p.submodel.segments import SegmentValues, expand, full_length, segment_key, segment_positions
from cos2p.submodel.slicing import window_slices


@dataclass(frozen=True, eq=False)
class Contribution:
    """An accepted update on its way into the model."""

    client: str
    spec: SubmodelSpec
    delta: Weights
    samples: int
    staleness: int
    received: Weights
    """The full model of the version the device was given."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The task's settings, as JSON."""
    extras: Weights = field(default_factory=dict)
    """What the device sent beside its update."""


class SegmentMerge:
    """w ← w − Σ γ̃_n s(τ_n) Δ_n, with γ̃ normalised over the holders of each segment.

    Being normalised, γ̃ only shifts weight between the updates of a round: if all are equally stale, nothing is
    damped. s(τ) = (1+τ)^(−step_exponent) shortens the stale update itself; 0 is the paper's form.
    """

    def __init__(
        self,
        config: ModelConfig,
        rule: Rule = "paper",
        staleness_exponent: float = 0.0,
        momentum: float = 0.0,
        step_exponent: float = 0.0,
    ) -> None:
        self.config, self.rule, self.exponent, self.momentum = config, rule, staleness_exponent, momentum
        self.step_exponent = step_exponent
        self._sum: Weights = {}
        self._weight: SegmentValues = {}
        self._velocity: Weights = {}
        self._used: Weights = {}  # sums of rounds before, for their memory: fresh pages cost more than zeroing old ones
        self._scratch = Scratch()
        self.holders: SegmentValues = {}
        """How many updates of this round held each segment."""

    def add(self, item: Contribution, current: Weights) -> dict[str, float]:
        """Add one update. Returns the mean γ over its heads, its units and its shared tensors, for the log."""
        gamma = update_weights(
            self.rule, self.config, item.spec, item.delta, current, item.received,
            item.samples, item.staleness, self.exponent, self._scratch,
        )  # fmt: skip
        slices = window_slices(self.config, item.spec)
        shorten = (1.0 + item.staleness) ** -self.step_exponent
        for name, delta in item.delta.items():
            if name not in self._sum:
                self._sum[name] = (
                    self._used.pop(name).zero_() if name in self._used else torch.zeros_like(current[name])
                )
            add_scaled(self._sum[name], delta, expand(gamma, name, self.config) * shorten, slices[name], self._scratch)
        for key, value in gamma.items():
            positions = segment_positions(self.config, item.spec, key)
            self._accumulate(self._weight, key, positions, value)
            self._accumulate(self.holders, key, positions, torch.ones_like(value))
        return _gamma_means(gamma)

    def apply(self, current: Weights) -> Weights:
        """Close the round: the next version. `current` is not changed; unchanged tensors are shared."""
        updated = dict(current)
        for name, total in self._sum.items():
            key = segment_key(self.config, name)
            if not self._weight[key].any():
                continue
            inverse = expand({key: _inverse(self._weight[key])}, name, self.config)
            if self.momentum:
                updated[name] = current[name] - self._with_momentum(name, total * inverse)
            else:
                updated[name] = torch.addcmul(current[name], total, inverse, value=-1)
        self._used |= self._sum
        self._sum, self._weight, self.holders = {}, {}, {}
        return updated

    def _with_momentum(self, name: str, step: Tensor) -> Tensor:
        """Heavy ball on what moved in this round; what nobody trained keeps both its value and its velocity."""
        velocity = self._velocity.get(name)
        moved = step != 0
        fresh = step if velocity is None else torch.where(moved, self.momentum * velocity + step, velocity)
        self._velocity[name] = fresh
        return torch.where(moved, fresh, 0.0)

    def _accumulate(self, into: SegmentValues, key: str, positions: Tensor | None, value: Tensor) -> None:
        if positions is None:
            into[key] = into[key] + value if key in into else value.clone()
            return
        length = full_length(self.config, key)
        assert length is not None
        into.setdefault(key, torch.zeros(length)).index_add_(0, positions, value)

    # ------------------------------------------------------------ checkpoint

    def state(self) -> dict[str, Weights]:
        """Everything that is not settings, as named groups of tensors. Write it down before the next `add`."""
        return {
            "sum": self._sum,
            "weight": self._weight,
            "velocity": self._velocity,
            "holders": self.holders,
        }

    def load_state(self, state: Mapping[str, Weights]) -> None:
        """The counterpart of `state`; the tensors are copied, because sums grow in place."""
        self._sum, self._weight, self._velocity, self.holders = (
            {name: tensor.clone() for name, tensor in state.get(group, {}).items()}
            for group in ("sum", "weight", "velocity", "holders")
        )


def _inverse(weight: Tensor) -> Tensor:
    """1/Σγ; 0 where nobody's update counts, so that nothing moves there."""
    return torch.where(weight > 0, 1 / weight.clamp_min(torch.finfo(weight.dtype).tiny), 0.0)


def _gamma_means(gamma: SegmentValues) -> dict[str, float]:
    groups: dict[str, list[Tensor]] = {"heads": [], "units": [], "shared": []}
    for key, value in gamma.items():
        kind = key.partition(".")[0]
        groups[kind if kind in ("heads", "units") else "shared"].append(value.flatten())
    return {
        kind: float(torch.cat(values).mean()) if values and sum(v.numel() for v in values) else 0.0
        for kind, values in groups.items()
    }
