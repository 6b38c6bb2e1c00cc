"""A norm bound that follows the fleet: no segment moves by much more than such segments usually do.

For every kind of segment (heads, units, each shared tensor whatever its block) the last few root mean squares of every
device are remembered, after they were bounded, so that no device can raise the measure by lying more. The measure is
the median over the devices of the median of each: a device that answers often counts once. A kind that fewer than
three devices have sent is measured by the kind that moves furthest of those that three have. While there is none, only
the update reader's own limit holds.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median_low
from typing import Any

import torch
from torch import Tensor

from cos2p.aggregation.merge import Contribution
from cos2p.models.config import ModelConfig
from cos2p.submodel.kernels import Scratch, square_sums
from cos2p.submodel.segments import SegmentValues, by_segment, expand, segment_key, segment_sizes, segmented
from cos2p.submodel.slicing import trained_shapes

MIN_DEVICES = 3
"""Fewest devices whose median says something of the fleet."""
RECENT = 3
"""Updates of a device that are remembered."""
DEVICES = 64
"""Devices that are remembered, those heard last."""

SAMPLES = ""
"""The kind under which a device's samples are remembered."""

_NUMBER = re.compile(r"\.\d+(?=\.|$)")


@lru_cache(maxsize=4096)
def kind_of(key: str) -> str:
    """
    >>> kind_of("heads.3"), kind_of("blocks.2.norm1.weight"), kind_of("rows.embed.tokens")
    ('heads', 'blocks.norm1.weight', 'rows.embed.tokens')
    """
    return _NUMBER.sub("", key)


@dataclass(frozen=True, eq=False)
class _Squares:
    """Σx² of every segment of an update."""

    sums: SegmentValues
    sizes: Mapping[str, int]
    """Scalars of one segment of each vector."""


class NormBound:
    """Shortens what is more than `factor` times as long as usual."""

    def __init__(self, config: ModelConfig, factor: float) -> None:
        self.config, self.factor = config, factor
        self._scratch = Scratch()
        self._sizes: dict[str, dict[str, list[float]]] = {}
        """By device, those heard last at the end: by kind of segment its last root mean squares."""
        self._medians: dict[str, list[float]] = {}
        """By kind of segment the median of each device, ascending."""

    @property
    def device_count(self) -> int:
        """Devices that are known."""
        return len(self._sizes)

    def apply(self, item: Contribution) -> Contribution:
        """The update, shortened where it is too long, and remembered. Where nothing is, the same tensors."""
        squares = self._squares(item)
        shortened = self._shortened(item, squares)
        self._note(item, squares if shortened is item else self._squares(shortened))
        return shortened

    def shortened(self, item: Contribution) -> Contribution:
        """No segment longer than `factor` times what is usual for its kind."""
        return self._shortened(item, self._squares(item))

    def _shortened(self, item: Contribution, squares: _Squares) -> Contribution:
        factors = self._factors(squares)
        if not factors:
            return item
        plain = self._plain(item)
        return replace(
            item,
            delta={name: self._scaled(name, tensor, factors, name in plain) for name, tensor in item.delta.items()},
        )

    def _factors(self, squares: _Squares) -> SegmentValues:
        """By how much what is too long has to be shortened; of segments that are not, nothing."""
        furthest, found = self._furthest(), {}
        for key, sums in squares.sums.items():
            usual = self.usual(kind_of(key))
            usual = furthest if usual is None else usual
            if usual is None:
                continue
            rms = (sums / squares.sizes[key]).sqrt_()
            factor = rms.clamp_min_(1e-30).reciprocal_().mul_(self.factor * usual).clamp_max_(1.0)
            if bool((factor < 1).any()):
                found[key] = factor
        return found

    def excess(self, item: Contribution) -> float:
        """How many times as long as usual it is, in the median of its kinds of segments; 0 where that is not known.

        One with more samples than usual takes more steps, and may come so many times as far.
        """
        ratios = [rms / usual for kind, rms in self._kinds(self._squares(item)).items() if (usual := self.usual(kind))]
        work = max(1.0, item.samples / (self.usual(SAMPLES) or item.samples or 1))
        return median_low(ratios) / work if ratios else 0.0

    def learn(self, items: Sequence[Contribution]) -> None:
        """Remember how large these are."""
        for item in items:
            self._note(item, self._squares(item))

    def usual(self, kind: str) -> float | None:
        """The fleet's measure; None if too few have reported."""
        medians = self._medians.get(kind, [])
        return medians[(len(medians) - 1) // 2] if len(medians) >= MIN_DEVICES else None

    def _furthest(self) -> float | None:
        """The measure of the kind of segment that moves most."""
        return max((usual for kind in self._medians if kind != SAMPLES and (usual := self.usual(kind))), default=None)

    # ------------------------------------------------------------ segments

    def _squares(self, item: Contribution) -> _Squares:
        """A tensor that is not cut as the model's are is one segment."""
        plain, table = self._plain(item), segmented(self.config)
        known = {name: tensor for name, tensor in item.delta.items() if name in plain}
        entries = {name: square_sums(tensor, table[name].dim, self._scratch) for name, tensor in known.items()}
        sums, sizes = by_segment(entries, self.config), segment_sizes(known, self.config)
        for name, tensor in item.delta.items():
            if name not in plain:
                sums[name], sizes[name] = tensor.square().sum(), max(1, tensor.numel())
        return _Squares(sums, sizes)

    def _plain(self, item: Contribution) -> set[str]:
        """Names of tensors that are whole segments of the model."""
        shapes = trained_shapes(self.config, item.spec)
        return {name for name, tensor in item.delta.items() if shapes.get(name) == tuple(tensor.shape)}

    def _scaled(self, name: str, tensor: Tensor, factors: SegmentValues, plain: bool) -> Tensor:
        key = segment_key(self.config, name) if plain else name
        if key not in factors:
            return tensor
        return tensor * (expand(factors, name, self.config) if plain else factors[key])

    def _kinds(self, squares: _Squares) -> dict[str, float]:
        """Root mean square of every kind of segment; without those that did not move: they say nothing of the rest."""
        if not squares.sums:
            return {}
        sums: dict[str, tuple[float, int]] = {}
        totals = torch.stack([values.sum() for values in squares.sums.values()]).tolist()
        for (key, values), own in zip(squares.sums.items(), totals, strict=True):
            total, count = sums.get(kind_of(key), (0.0, 0))
            sums[kind_of(key)] = total + own, count + squares.sizes[key] * values.numel()
        return {kind: (total / count) ** 0.5 for kind, (total, count) in sums.items() if total > 0}

    # ------------------------------------------------------------ memory

    def _note(self, item: Contribution, squares: _Squares) -> None:
        if not squares.sums:
            return  # an update may come without a step of the model
        client, own = item.client, self._forget(item.client)
        for kind, rms in {**self._kinds(squares), SAMPLES: float(item.samples)}.items():
            own[kind] = [*own.get(kind, []), rms][-RECENT:]
        self._remember(client, own)
        while len(self._sizes) > DEVICES:
            self._forget(next(iter(self._sizes)))

    def _remember(self, client: str, own: dict[str, list[float]]) -> None:
        self._sizes[client] = own
        for kind, sizes in own.items():
            insort(self._medians.setdefault(kind, []), median_low(sizes))

    def _forget(self, client: str) -> dict[str, list[float]]:
        """Removes what is kept of a device, and returns it."""
        own = self._sizes.pop(client, {})
        for kind, sizes in own.items():
            medians = self._medians[kind]
            del medians[bisect_left(medians, median_low(sizes))]
        return own

    # ------------------------------------------------------------ checkpoint

    def state(self) -> dict[str, Any]:
        return {client: {kind: list(sizes) for kind, sizes in own.items()} for client, own in self._sizes.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._sizes, self._medians = {}, {}
        for client, own in state.items():
            self._remember(client, {kind: list(sizes) for kind, sizes in own.items()})
