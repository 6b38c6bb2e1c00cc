"""Any merge, and exits that start from statistics of the devices' features.

The sums of all devices that reported are kept. When more arrive, the closed form is computed anew and its *change* is
added to the exits: what training has added to them meanwhile stays, and a device that reports late counts all the same.
What is reported at the end of a run replaces the exit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from typing_extensions import Self

from cos2p.aggregation.closed_form import HeadForm, closed_form
from cos2p.aggregation.merge import Contribution, Merge, Place
from cos2p.aggregation.weights import even_weight
from cos2p.models.layout import Weights, exit_key
from cos2p.submodel.segments import SegmentValues


class HeadMerge(Merge):
    """Statistics go here, every other update to the method's own merge."""

    groups: ClassVar[tuple[str, ...]] = ("arrived", "statistics", "heads", "final")
    arrived: Weights
    """Sums of this round."""
    statistics: Weights
    """Sums of all rounds before."""
    heads: Weights
    """The closed form that is part of the exits' values."""
    final: Weights
    """Sums of this round that were reported at the end."""

    def __init__(self, own: Merge, start: HeadForm | None, finish: HeadForm | None) -> None:
        super().__init__(own.config)
        self.own, self.start, self.finish = own, start, finish

    @property
    def holders(self) -> SegmentValues:
        return self.own.holders

    @holders.setter
    def holders(self, values: SegmentValues) -> None:
        """The method's own merge has them."""

    def decode(self, item: Contribution, current: Weights) -> Contribution:
        return item if "counts" in item.extras else self.own.decode(item, current)

    def products(self, item: Contribution) -> Weights:
        return self.own.products(item)

    def put_away(self, version: Weights, where: Weights) -> None:
        self.own.put_away(version, where)

    def places(self, item: Contribution) -> Mapping[str, Place]:
        return self.own.places(item)

    def weigh(self, item: Contribution, current: Weights) -> dict[str, float] | None:
        return even_weight(1.0) if "counts" in item.extras else self.own.weigh(item, current)

    def add(self, item: Contribution, current: Weights) -> dict[str, float]:
        if "counts" not in item.extras:
            return self.own.add(item, current)
        if item.settings.get("final"):
            self.final = _added(self.final, item.extras)
        else:
            self.arrived = _added(self.arrived, item.extras)
        return even_weight(1.0)

    def apply(self, current: Weights) -> Weights:
        # The last round merges nothing: a memory of earlier updates would move what was just reported.
        updated = dict(current) if self.final else self.own.apply(current)
        if self.arrived and self.start is not None:
            self.statistics, self.arrived = _added(self.statistics, self.arrived), {}
            for name, head in self._closed_heads(self.statistics, self.start).items():
                updated[name] = head + (updated[name] - self.heads.get(name, current[name]))
                self.heads[name] = head
        if self.final and self.finish is not None:
            updated |= self._closed_heads(self.final, self.finish)
            self.final = {}
        return updated

    def _closed_heads(self, statistics: Weights, form: HeadForm) -> Weights:
        found: Weights = {}
        for depth in sorted(int(name.partition(".")[0]) for name in statistics if name.endswith(".sums")):
            key = exit_key(self.config, depth)  # of a shared exit the deepest is written last
            weight, bias = closed_form(statistics, depth, form, biased=self.config.biased)
            found[f"{key}.linear.weight"] = weight
            if self.config.biased:
                found[f"{key}.linear.bias"] = bias
        return found

    def take_over(self, other: Self) -> None:
        super().take_over(other)
        self.own.take_over(other.own)

    def state(self) -> dict[str, Weights]:
        return {**self.own.state(), **super().state()}

    def load_state(self, state: Mapping[str, Weights]) -> None:
        super().load_state(state)
        self.own.load_state({group: tensors for group, tensors in state.items() if group not in self.groups})


def _added(sums: Weights, more: Weights) -> Weights:
    return {name: sums[name] + value if name in sums else value.clone() for name, value in more.items()}
