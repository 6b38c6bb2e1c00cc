"""`Merge`: how accepted updates become the next version; `SegmentMerge` is the paper's and that of plain averaging.

Streaming: keep Σγ·Δ and Σγ per segment, add each update as it arrives, divide when the round closes.

Memory does not grow with the number of clients, and an update can be forgotten as soon as it was added. Segments that
nobody trained keep their values bitwise; where Σγ = 0 nothing moves either. A new version shares every tensor that did
not change with the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from cos2p.aggregation.weights import EVEN, Rule, even_factor, update_weights
from cos2p.messages import Precision
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.models.spec import SubmodelSpec
from cos2p.submodel.kernels import Scratch, add_scaled, step
from cos2p.submodel.segments import (
    Repeated,
    SegmentValues,
    add_at_segments,
    expand,
    held_segments,
    segmented,
)
from cos2p.submodel.slicing import Slice, extract, trained_shapes, window_slices
from cos2p.training.contract import as_received

LARGE_BYTES = 2**29
"""From here on a copy of the model more or less matters."""


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
    """Tensors that the device sent next to its update."""
    down: Precision = "float32"
    """How the weights travelled to it."""

    def given(self, config: ModelConfig, names: Iterable[str] | None = None) -> Weights:
        """The weights that the device began from: the tensors of its submodel, or these of them, as they arrived."""
        return as_received(extract(self.received, config, self.spec, names), self.down)


Place = tuple[Tensor | slice, ...]
"""An index into a full tensor that picks, or is assigned to, the part an update holds."""


def slice_place(cut: Slice | None) -> Place:
    return () if cut is None else (*(slice(None),) * cut[0], cut[1])


class Merge:
    """Base of all merges: updates are added as they are accepted, `apply` closes the round.

    What must survive a restart are groups of tensors by name, kept in the attributes that `groups` lists.
    """

    groups: ClassVar[tuple[str, ...]] = ("holders",)

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        for group in self.groups:
            setattr(self, group, {})

    holders: SegmentValues
    """How many updates of this round held each segment."""

    def decode(self, item: Contribution, current: Weights) -> Contribution:
        """The update with everything in its delta that moves the model, where some of it came in another form.

        Changes nothing; what cannot be decoded is refused. The result is bounded before it is added.
        """
        return item

    def products(self, item: Contribution) -> Weights:
        """Tensors that a decoded update moves besides those of its delta: products, where factors are multiplied.

        Checked like a delta before the update is added.
        """
        return {}

    def add(self, item: Contribution, current: Weights) -> dict[str, float]:
        """Add one update, decoded. Returns what it counted, for the log."""
        raise NotImplementedError

    def apply(self, current: Weights) -> Weights:
        """Close the round: the next version. `current` is not changed; unchanged tensors are shared."""
        raise NotImplementedError

    def places(self, item: Contribution) -> Mapping[str, Place]:
        """Where the tensors of an update lie in the model's; of those that are not listed it is not known."""
        slices = window_slices(self.config, item.spec)
        return {name: slice_place(slices[name]) for name in item.delta if name in slices}

    def weigh(self, item: Contribution, current: Weights) -> dict[str, float] | None:
        """The weights that `add` would return, if they are known without adding."""
        return None

    def count_holders(self, item: Contribution) -> None:
        """Note the segments that the update's tensors hold."""
        add_at_segments(self.holders, held_segments(self.config, item.spec, item.delta), self.config, item.spec)

    def clear(self, *groups: str) -> None:
        """Forget these groups and the holders: the round is closed."""
        for group in ("holders", *groups):
            setattr(self, group, {})

    def take_over(self, other: Self) -> None:
        """Go on from where another of the same kind stands, which is not used any more: its tensors are not copied."""
        for group in self.groups:
            setattr(self, group, getattr(other, group))

    def state(self) -> dict[str, Weights]:
        """Everything that is not settings, as named groups of tensors. Write it down before the next `add`."""
        return {group: getattr(self, group) for group in self.groups}

    def load_state(self, state: Mapping[str, Weights]) -> None:
        """The counterpart of `state`; the tensors are copied, because sums grow in place."""
        for group in self.groups:
            setattr(self, group, {name: tensor.clone() for name, tensor in state.get(group, {}).items()})


class SegmentMerge(Merge):
    """w ← w − Σ γ̃_n s(τ_n) Δ_n, with γ̃ normalised over the holders of each segment.

    Being normalised, γ̃ only shifts weight between the updates of a round: if all are equally stale, nothing is
    damped. s(τ) = (1+τ)^(−step_exponent) shortens the stale update itself; 0 is the paper's form.
    """

    groups: ClassVar[tuple[str, ...]] = ("sum", "weight", "holders")
    sum: Weights
    weight: SegmentValues

    def __init__(self, config: ModelConfig, rule: Rule = "paper", step_exponent: float = 0.0) -> None:
        super().__init__(config)
        self.rule, self.step_exponent = rule, step_exponent
        self._scratch = Scratch()
        self._seen_stale = False
        """Whether it is worth a look how far a version is from the one before."""

    def add(self, item: Contribution, current: Weights) -> dict[str, float]:
        """Add one update. Returns the mean γ over its heads, its units and its shared tensors, for the log."""
        shorten = (1.0 + item.staleness) ** -self.step_exponent
        self._seen_stale = self._seen_stale or item.staleness > 0
        even = even_factor(self.rule, item.samples) if self.rule in EVEN else None
        gamma = self._gamma(item, current)
        slices = window_slices(self.config, item.spec)
        repeated: Repeated = {}
        for name, delta in item.delta.items():
            first = name not in self.sum
            total = torch.empty_like(current[name]) if first else self.sum[name]
            if even is None:
                factor = expand(gamma, name, self.config, repeated)
            else:
                factor = torch.tensor(even)
            factor = factor if shorten == 1.0 else factor * shorten
            add_scaled(total, delta, factor, slices[name], self._scratch, first=first)
            self.sum[name] = total
        add_at_segments(self.weight, gamma, self.config, item.spec)
        self.count_holders(item)
        return _gamma_means(gamma)

    def weigh(self, item: Contribution, current: Weights) -> dict[str, float] | None:
        shapes = trained_shapes(self.config, item.spec)  # a kind of this merge may know tensors of other names
        own = {name: delta for name, delta in item.delta.items() if shapes.get(name) == tuple(delta.shape)}
        return _gamma_means(self._gamma(replace(item, delta=own), current))

    def _gamma(self, item: Contribution, current: Weights) -> SegmentValues:
        return update_weights(
            self.rule, self.config, item.spec, item.delta, current, item.received,
            item.samples, self._scratch,
        )  # fmt: skip

    def apply(self, current: Weights) -> Weights:
        updated, table = dict(current), segmented(self.config)
        inverses = {key: _inverse(self.weight[key]) for key in self._moving()}
        look = self._scratch if self._seen_stale and self.rule not in EVEN else None
        self._scratch.forget()
        repeated: Repeated = {}
        for name, total in self.sum.items():
            if table[name].key not in inverses:
                continue
            inverse = expand(inverses, name, self.config, repeated)
            # The next version takes the place of the sums: no copy more, and no page that was not touched before.
            updated[name] = step(total, current[name], inverse, table[name].dim, look)
        self.clear("sum", "weight")
        return updated

    def _moving(self) -> set[str]:
        """Vectors of segments of which some update counts."""
        return {key for key, weight in self.weight.items() if weight.any()}


def is_large(weights: Weights) -> bool:
    """Whether a copy of the model more or less matters."""
    return sum(tensor.nbytes for tensor in weights.values()) > LARGE_BYTES


def _inverse(weight: Tensor) -> Tensor:
    """1/Σγ; 0 where nobody's update counts, so that nothing moves there."""
    return torch.where(weight > 0, 1 / weight.clamp_min(torch.finfo(weight.dtype).tiny), 0.0)


def _gamma_means(gamma: SegmentValues) -> dict[str, float]:
    groups: dict[str, list[Tensor]] = {"heads": [], "units": [], "shared": []}
    for key, value in gamma.items():
        groups[_kind(key)].append(value.flatten())
    found = {kind: torch.cat(values).mean() for kind, values in groups.items() if any(v.numel() for v in values)}
    means = torch.stack(list(found.values())).tolist() if found else []
    return dict.fromkeys(groups, 0.0) | dict(zip(found, means, strict=True))


def _kind(key: str) -> str:
    kind = key.partition(".")[0]
    return kind if kind in ("heads", "units") else "shared"
