"""Updates merged segment by segment, and exits that start from what devices told of their features.

The sums of all devices that told are kept. When more arrive, the closed form is computed anew and its *change* is added
to the exits: what training has added to them meanwhile stays, and a device that tells late is heard all the same. What
is told at the end of a run replaces the exit.
"""

from __future__ import annotations

from typing import Any, ClassVar

from cos2p.accelerator import CPU, place
from cos2p.aggregation.closed_form import HeadForm, closed_form
from cos2p.aggregation.merge import Contribution, SegmentMerge
from cos2p.aggregation.weights import even_weight
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights, exit_key


class HeadMerge(SegmentMerge):
    groups: ClassVar[tuple[str, ...]] = (*SegmentMerge.groups, "arrived", "told", "heads", "final")
    accelerated: ClassVar[tuple[str, ...]] = SegmentMerge.accelerated
    arrived: Weights
    """Sums of this round."""
    told: Weights
    """Sums of all rounds before."""
    heads: Weights
    """The closed form that is part of the exits' values."""
    final: Weights
    """Sums of this round that were told at the end."""

    def __init__(
        self, config: ModelConfig, start: HeadForm | None, finish: HeadForm | None, ridge: float, **options: Any
    ) -> None:
        super().__init__(config, **options)
        self.start, self.finish, self.ridge = start, finish, ridge

    def weigh(self, item: Contribution, current: Weights) -> dict[str, float] | None:
        return even_weight(1.0) if "counts" in item.extras else super().weigh(item, current)

    def add(self, item: Contribution, current: Weights) -> dict[str, float]:
        if "counts" not in item.extras:
            return super().add(item, current)
        if item.settings.get("final"):
            self.final = _added(self.final, item.extras)
        else:
            self.arrived = _added(self.arrived, item.extras)
        return even_weight(1.0)

    def apply(self, current: Weights) -> Weights:
        updated = super().apply(current)
        if self.arrived and self.start is not None:
            self.told, self.arrived = _added(self.told, self.arrived), {}
            for name, head in self._closed_heads(self.told, self.start).items():
                moved = place(updated[name], CPU) - self.heads.get(name, place(current[name], CPU))
                updated[name] = head + moved
                self.heads[name] = head
        if self.final and self.finish is not None:
            updated |= self._closed_heads(self.final, self.finish)
            self.final = {}
        return updated

    def _closed_heads(self, told: Weights, form: HeadForm) -> Weights:
        found: Weights = {}
        for depth in sorted(int(name.partition(".")[0]) for name in told if name.endswith(".sums")):
            key = exit_key(self.config, depth)  # of a shared exit the deepest is written last
            weight, bias = closed_form(told, depth, form, self.ridge, self.config.biased)
            found[f"{key}.linear.weight"] = weight
            if self.config.biased:
                found[f"{key}.linear.bias"] = bias
        return found


def _added(sums: Weights, more: Weights) -> Weights:
    return {name: sums[name] + value if name in sums else value.clone() for name, value in more.items()}
