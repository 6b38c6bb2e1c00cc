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
from functools import lru_cache
from statistics import median_low
from typing import Any

import torch
from torch import Tensor

from cos2p.aggregation.merge import Contribution
from cos2p.models.config import ModelConfig
from cos2p.submodel.kernels import Scratch
from cos2p.submodel.segments import SegmentValues, expand, segment_key, segment_sizes, segment_squares
from cos2p.submodel.slicing import compact_shapes

VOICES = 3
"""Fewest devices whose median says something of the fleet."""
RECENT = 3
"""Updates of a device that are remembered."""
DEVICES = 64
"""Devices that are remembered, those heard last."""

_NUMBER = re.compile(r"\.\d+(?=\.|$)")


@lru_cache(maxsize=4096)
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
        self._scratch = Scratch()
        self._sizes: dict[str, dict[str, list[float]]] = {}
        """By device, those heard last at the end: by kind of segment its last root mean squares."""

    @property
    def voices(self) -> int:
        """Devices that are known."""
        return len(self._sizes)

    def apply(self, item: Contribution) -> Contribution:
        """The update, shortened where it is too long, and remembered. Where nothing is, the same tensors."""
        measured = self._squares(item)
        shortened = self._shortened(item, *measured)
        self._note(item.client, *(measured if shortened is item else self._squares(shortened)))
        return shortened

    def shortened(self, item: Contribution) -> Contribution:
        """No segment longer than `factor` times what is usual for its kind."""
        return self._shortened(item, *self._squares(item))

    def _shortened(self, item: Contribution, squares: SegmentValues, sizes: Mapping[str, int]) -> Contribution:
        factors = self._factors(squares, sizes)
        if not factors:
            return item
        plain = self._plain(item)
        return replace(
            item,
            delta={name: self._scaled(name, tensor, factors, name in plain) for name, tensor in item.delta.items()},
        )

    def _factors(self, squares: SegmentValues, sizes: Mapping[str, int]) -> SegmentValues:
        """By how much what is too long has to be shortened; of segments that are not, nothing. All in one vector:
        a model has a hundred short ones."""
        usual = {kind: self.usual(kind) for kind in dict.fromkeys(map(kind_of, squares))}
        keys = [key for key, values in squares.items() if values.numel() and usual[kind_of(key)] is not None]
        if not keys:
            return {}
        lengths = torch.tensor([squares[key].numel() for key in keys])
        size = torch.tensor([sizes[key] for key in keys], dtype=torch.float32).repeat_interleave(lengths)
        limit = torch.tensor([self.factor * float(usual[kind_of(key)] or 0.0) for key in keys])
        rms = (torch.cat([squares[key].flatten() for key in keys]) / size).sqrt_()
        factor = rms.clamp_min_(1e-30).reciprocal_().mul_(limit.repeat_interleave(lengths)).clamp_max_(1.0)
        if not bool((factor < 1).any()):
            return {}
        parts = zip(keys, factor.split(lengths.tolist()), strict=True)
        return {key: part.view_as(squares[key]) for key, part in parts if bool((part < 1).any())}

    def excess(self, item: Contribution) -> float:
        """How many times as long as usual it is, in the median of its kinds of segments; 0 where that is not known."""
        ratios = [rms / usual for kind, rms in self._kinds(*self._squares(item)).items() if (usual := self.usual(kind))]
        return median_low(ratios) if ratios else 0.0

    def learn(self, items: Sequence[Contribution]) -> None:
        """Remember how large these are."""
        for item in items:
            self._note(item.client, *self._squares(item))

    def usual(self, kind: str) -> float | None:
        """The fleet's measure; None if too few have told."""
        voices = [own[0] if len(own) == 1 else median_low(own) for d in self._sizes.values() if (own := d.get(kind))]
        return median_low(voices) if len(voices) >= VOICES else None

    # ------------------------------------------------------------ segments

    def _squares(self, item: Contribution) -> tuple[SegmentValues, dict[str, int]]:
        """Σx² and the scalars of every segment. A tensor that is not cut as the model's are is one segment."""
        plain = self._plain(item)
        known = {name: tensor for name, tensor in item.delta.items() if name in plain}
        squares = segment_squares(known, self.config, self._scratch)
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

    def _kinds(self, squares: SegmentValues, sizes: Mapping[str, int]) -> dict[str, float]:
        """Root mean square of every kind of segment; without those that did not move: they say nothing of the rest."""
        if not squares:
            return {}
        sums: dict[str, tuple[float, int]] = {}
        totals = torch.stack([values.sum() if values.ndim else values for values in squares.values()]).tolist()
        for (key, values), own_total in zip(squares.items(), totals, strict=True):
            total, count = sums.get(kind_of(key), (0.0, 0))
            sums[kind_of(key)] = total + own_total, count + sizes[key] * values.numel()
        return {kind: (total / count) ** 0.5 for kind, (total, count) in sums.items() if total > 0}

    def _note(self, client: str, squares: SegmentValues, sizes: Mapping[str, int]) -> None:
        if not squares:
            return  # an update may come without a step of the model
        own = self._sizes.pop(client, {})
        for kind, rms in self._kinds(squares, sizes).items():
            own[kind] = [*own.get(kind, []), rms][-RECENT:]
        self._sizes[client] = own
        while len(self._sizes) > DEVICES:
            del self._sizes[next(iter(self._sizes))]

    # ------------------------------------------------------------ checkpoint

    def state(self) -> dict[str, Any]:
        return {client: {kind: list(sizes) for kind, sizes in own.items()} for client, own in self._sizes.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._sizes = {client: {kind: list(sizes) for kind, sizes in own.items()} for client, own in state.items()}
