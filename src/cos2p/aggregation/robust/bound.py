"""A norm bound that follows the fleet: no segment moves by much more than such segments usually do.

For every kind of segment (heads, units, each shared tensor whatever its block) the last few root mean squares of every
device are remembered, after they were bounded, so that a liar cannot raise the measure by lying more. The measure is
the median over the devices of the median of each: a device that answers often is one voice. With fewer than three
voices there is no measure, and only the door's own limit holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median_low
from typing import Any

from torch import Tensor

from cos2p.aggregation.merge import Contribution
from cos2p.models.config import ModelConfig
from cos2p.submodel.segments import SegmentValues, expand, segment_key, segment_sizes, segment_squares
from cos2p.submodel.slicing import compact_shapes

VOICES = 3
"""Fewest devices whose median says something of the fleet."""
RECENT = 3
"""Updates of a device that are remembered."""
DEVICES = 64
"""Devices that are remembered, those heard last."""

_NUMBER = re.compile(r"\.\d+(?=\.|$)")


def kind_of(key: str) -> str:
    """
    >>> kind_of("heads.3"), kind_of("blocks.2.norm1.weight"), kind_of("rows.embed.tokens")
    ('heads', 'blocks.norm1.weight', 'rows.embed.tokens')
    """
    return _NUMBER.sub("", key)


class NormBound:
    """Shortens what is more than `factor` times as long as usual."""

    def __init__(self, config: ModelConfig, factor: float) -> None:
        self.config, self.factor = config, factor
        self._sizes: dict[str, dict[str, list[float]]] = {}
        """By device, those heard last at the end: by kind of segment its last root mean squares."""

    @property
    def voices(self) -> int:
        """Devices that are known."""
        return len(self._sizes)

    def apply(self, item: Contribution) -> Contribution:
        """The update, shortened where it is too long, and remembered. Where nothing is, the same tensors."""
        shortened = self.shortened(item)
        self.learn([shortened])
        return shortened

    def shortened(self, item: Contribution) -> Contribution:
        """No segment longer than `factor` times what is usual for its kind."""
        squares, sizes = self._squares(item)
        factors: SegmentValues = {}
        for key, values in squares.items():
            usual = self.usual(kind_of(key))
            if usual is None or not values.numel():
                continue
            rms = (values / sizes[key]).sqrt()
            factor = (self.factor * usual / rms.clamp_min(1e-30)).clamp_max(1.0)
            if bool((factor < 1).any()):
                factors[key] = factor
        if not factors:
            return item
        plain = self._plain(item)
        return replace(
            item,
            delta={name: self._scaled(name, tensor, factors, name in plain) for name, tensor in item.delta.items()},
        )

    def excess(self, item: Contribution) -> float:
        """How many times as long as usual it is, in the median of its kinds of segments; 0 where that is not known."""
        ratios = [rms / usual for kind, rms in self._kinds(item).items() if (usual := self.usual(kind))]
        return median_low(ratios) if ratios else 0.0

    def learn(self, items: Sequence[Contribution]) -> None:
        """Remember how large these are."""
        for item in items:
            self._note(item)

    def usual(self, kind: str) -> float | None:
        """The fleet's measure; None if too few have told."""
        voices = [median_low(own) for device in self._sizes.values() if (own := device.get(kind))]
        return median_low(voices) if len(voices) >= VOICES else None

    # ------------------------------------------------------------ segments

    def _squares(self, item: Contribution) -> tuple[SegmentValues, dict[str, int]]:
        """Σx² and the scalars of every segment. A tensor that is not cut as the model's are is one segment."""
        plain = self._plain(item)
        known = {name: tensor for name, tensor in item.delta.items() if name in plain}
        squares = segment_squares(known, self.config)
        sizes = segment_sizes(known, self.config)
        for name, tensor in item.delta.items():
            if name not in plain:
                squares[name], sizes[name] = tensor.square().sum(), max(1, tensor.numel())
        return squares, sizes

    def _plain(self, item: Contribution) -> set[str]:
        """Names of tensors that are whole segments of the model."""
        shapes = compact_shapes(self.config, item.spec)
        return {name for name, tensor in item.delta.items() if shapes.get(name) == tuple(tensor.shape)}

    def _scaled(self, name: str, tensor: Tensor, factors: SegmentValues, plain: bool) -> Tensor:
        key = segment_key(self.config, name) if plain else name
        if key not in factors:
            return tensor
        return tensor * (expand(factors, name, self.config) if plain else factors[key])

    def _kinds(self, item: Contribution) -> dict[str, float]:
        """Root mean square of every kind of segment; without those that did not move: they say nothing of the rest."""
        squares, sizes = self._squares(item)
        sums: dict[str, tuple[float, int]] = {}
        for key, values in squares.items():
            total, count = sums.get(kind_of(key), (0.0, 0))
            sums[kind_of(key)] = total + float(values.sum()), count + sizes[key] * values.numel()
        return {kind: (total / count) ** 0.5 for kind, (total, count) in sums.items() if total > 0}

    def _note(self, item: Contribution) -> None:
        if not item.delta:
            return  # an update may come without a step of the model
        own = self._sizes.pop(item.client, {})
        for kind, rms in self._kinds(item).items():
            own[kind] = [*own.get(kind, []), rms][-RECENT:]
        self._sizes[item.client] = own
        while len(self._sizes) > DEVICES:
            del self._sizes[next(iter(self._sizes))]

    # ------------------------------------------------------------ checkpoint

    def state(self) -> dict[str, Any]:
        return {client: {kind: list(sizes) for kind, sizes in own.items()} for client, own in self._sizes.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._sizes = {client: {kind: list(sizes) for kind, sizes in own.items()} for client, own in state.items()}
