"""FedAsync's server (Xie et al. 2019, Algorithm 1): every arrival is mixed into the model at once.

    w ← (1 − α_v)·w + α_v·x_new        α_v = α · s(τ)

x_new is the model the device trained, of which a submodel holds a part: only those scalars move. α_v is computed anew
for each arrival from the constant α (an implementation that multiplies a stored α by s decays for ever).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from cos2p.aggregation.counting import add_at_segments, held_segments
from cos2p.aggregation.merge import Contribution
from cos2p.aggregation.weights import even_weight
from cos2p.errors import ConfigError
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.submodel.segments import SegmentValues
from cos2p.submodel.slicing import window_slices

DampingKind = Literal["constant", "polynomial", "hinge"]


@dataclass(frozen=True)
class Damping:
    """s(τ), Section 4 of FedAsync: how much an update counts that is τ versions old.

    >>> Damping("polynomial", a=0.5)(3), Damping("hinge", a=10, b=4)(4), Damping("hinge", a=10, b=4)(5)
    (0.5, 1.0, 0.09090909090909091)
    """

    kind: DampingKind = "constant"
    a: float = 0.5
    """Exponent of `polynomial`, slope of `hinge`."""
    b: float = 0.0
    """`hinge`: the staleness up to which nothing is damped."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(DampingKind):
            raise ConfigError(f"unknown damping {self.kind!r}; known: {', '.join(get_args(DampingKind))}")
        for name in ("a", "b"):
            if getattr(self, name) < 0:
                raise ConfigError(f"damping {name} is {getattr(self, name)}; it cannot be negative")

    def __call__(self, staleness: int) -> float:
        if self.kind == "polynomial":
            return float((staleness + 1.0) ** -self.a)
        if self.kind == "hinge" and staleness > self.b:
            return 1.0 / (self.a * (staleness - self.b) + 1.0)
        return 1.0


class MixingMerge:
    """Mixes each update into the next version as it arrives; several between two versions are mixed one by one."""

    def __init__(self, config: ModelConfig, alpha: float, damping: Damping) -> None:
        self.config, self.alpha, self.damping = config, alpha, damping
        self._next: Weights = {}
        """The tensors that have moved since the last version."""
        self.holders: SegmentValues = {}

    def add(self, item: Contribution, current: Weights) -> dict[str, float]:
        alpha = self.alpha * self.damping(item.staleness)
        for name, cut in window_slices(self.config, item.spec).items():
            now, received, delta = self._next.get(name, current[name]), item.received[name], item.delta[name]
            if cut is None:
                self._next[name] = torch.lerp(now, received - delta, alpha)
                continue
            held = torch.lerp(now.index_select(*cut), received.index_select(*cut) - delta, alpha)
            self._next[name] = now.index_copy(*cut, held)
        add_at_segments(self.holders, held_segments(self.config, item.spec, item.delta), self.config, item.spec)
        return even_weight(alpha)

    def apply(self, current: Weights) -> Weights:
        updated = {**current, **self._next}
        self._next, self.holders = {}, {}
        return updated

    def state(self) -> dict[str, Weights]:
        return {"next": self._next, "holders": self.holders}

    def load_state(self, state: Mapping[str, Weights]) -> None:
        self._next, self.holders = (
            {name: tensor.clone() for name, tensor in state.get(group, {}).items()} for group in ("next", "holders")
        )
