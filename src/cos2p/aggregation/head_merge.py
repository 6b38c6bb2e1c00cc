"""Updates merged segment by segment, and exits that start from what devices told of their features.

The sums of all devices that told are kept. When more arrive, the closed form is computed anew and its *change* is added
to the exits: what training has added to them meanwhile stays, and a device that tells late is heard all the same.
"""

from __future__ import annotations

from typing import Any, ClassVar

from cos2p.aggregation.closed_form import HeadForm, closed_form
from cos2p.aggregation.merge import Contribution, SegmentMerge
from cos2p.aggregation.weights import even_weight
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights, exit_key


class HeadMerge(SegmentMerge):
    groups: ClassVar[tuple[str, ...]] = (*SegmentMerge.groups, "arrived", "told", "heads")
    arrived: Weights
    """Sums of this round."""
    told: Weights
    """Sums of all rounds before."""
    heads: Weights
    """The closed form that is part of the exits' values."""

    def __init__(self, config: ModelConfig, form: HeadForm, ridge: float, **options: Any) -> None:
        super().__init__(config, **options)
        self.form, self.ridge = form, ridge

    def add(self, item: Contribution, current: Weights) -> dict[str, float]:
        if "counts" not in item.extras:
            return super().add(item, current)
        self.arrived = _added(self.arrived, item.extras)
        return even_weight(1.0)

    def apply(self, current: Weights) -> Weights:
        updated = super().apply(current)
        if not self.arrived:
            return updated
        self.told, self.arrived = _added(self.told, self.arrived), {}
        for name, head in self._closed_heads().items():
            updated[name] = head + (updated[name] - self.heads.get(name, current[name]))
            self.heads[name] = head
        return updated

    def _closed_heads(self) -> Weights:
        found: Weights = {}
        for depth in sorted(int(name.partition(".")[0]) for name in self.told if name.endswith(".sums")):
            key = exit_key(self.config, depth)  # of a shared exit the deepest is written last
            weight, bias = closed_form(self.told, depth, self.form, self.ridge, self.config.biased)
            found[f"{key}.linear.weight"] = weight
            if self.config.biased:
                found[f"{key}.linear.bias"] = bias
        return found


def _added(sums: Weights, more: Weights) -> Weights:
    return {name: sums[name] + value if name in sums else value.clone() for name, value in more.items()}
