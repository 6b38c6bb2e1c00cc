"""A norm bound that follows the fleet: no segment moves by much more than such segments usually do.

For every kind of segment (heads, units, each shared tensor whatever its block) the last few root mean squares of every
device are remembered, after they were bounded, so that no device can raise the measure by lying more. The measure is
the median over the devices of the median of each: a device that answers often counts once. A kind that fewer than
three devices have sent is measured by the kind that moves furthest of those that three have. While there is none, only
the update reader's own limit holds.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, islice
from statistics import median_low
from typing import Any

import torch
from torch import Tensor

from cos2p.aggregation.merge import Contribution
from cos2p.models.config import ModelConfig
from cos2p.models.flat_tensors import FlatTensors
from cos2p.submodel.kernels import Scratch
from cos2p.submodel.segments import SegmentValues, expand, full_length, segment_key
from cos2p.submodel.slicing import trained_shapes
from cos2p.submodel.square_sums import Squares, Vectors, segment_squares

MIN_DEVICES = 3
"""Fewest devices whose median says something of the fleet."""
RECENT = 3
"""Updates of a device that are remembered."""
DEVICES = 64
"""Devices that are remembered, those heard last."""

SAMPLES = ""
"""The kind under which a device's samples are remembered."""

NEARLY = 0.999
"""A sum of squares below so much of the largest that is let through is not looked at more closely."""

_NUMBER = re.compile(r"\.\d+(?=\.|$)")


@lru_cache(maxsize=4096)
def kind_of(key: str) -> str:
    """
    >>> kind_of("heads.3"), kind_of("blocks.2.norm1.weight"), kind_of("rows.embed.tokens")
    ('heads', 'blocks.norm1.weight', 'rows.embed.tokens')
    """
    return _NUMBER.sub("", key)


@dataclass(frozen=True, eq=False)
class _Places:
    """Where the numbers of some vectors lie in a row. Not to be changed."""

    which: Tensor
    """To which of the vectors each number belongs."""
    sizes: Tensor
    """How many scalars the segment of each number has."""
    single: Tensor
    """The numbers of vectors of one segment."""
    begins: tuple[int, ...]


@lru_cache(maxsize=64)
def _places(of: tuple[Vectors, ...]) -> _Places:
    lengths = torch.tensor([own.numbers for own in of])
    which = torch.arange(len(of)).repeat_interleave(lengths)
    sizes, single = torch.tensor([float(own.size) for own in of]), torch.tensor([own.segments == 1 for own in of])
    begins = tuple(accumulate((own.numbers for own in of), initial=0))
    return _Places(which, sizes.index_select(0, which), single[which].nonzero().view(-1), begins)


def _totals(squares: Squares) -> Iterator[float]:
    """Over all segments of each vector."""
    places = _places(squares.of)
    single = iter(squares.values.index_select(0, places.single).tolist())
    for own, begin in zip(squares.of, places.begins, strict=False):
        if own.segments == 1:
            yield from islice(single, len(own.keys))
        else:
            part = squares.values[begin : begin + own.numbers]
            yield from part.view(len(own.keys), own.segments).sum(1).tolist()


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

    def _shortened(self, item: Contribution, squares: Squares) -> Contribution:
        factors = self._factors(squares)
        if not factors:
            return item
        plain = self._plain(item)
        return replace(
            item,
            delta={name: self._scaled(name, tensor, factors, name in plain) for name, tensor in item.delta.items()},
        )

    def _factors(self, squares: Squares) -> SegmentValues:
        """By how much what is too long has to be shortened; of segments that are not, nothing. All in one vector:
        a model has a hundred short ones."""
        if not squares.of:
            return {}
        places = _places(squares.of)
        other = self._furthest()
        usual = [other if (each := self.usual(kind_of(own.keys[0]))) is None else each for own in squares.of]
        limits = [math.inf if each is None else self.factor * each for each in usual]
        near = [NEARLY * own.size * limit * limit for own, limit in zip(squares.of, limits, strict=True)]
        if not bool((squares.values > torch.tensor(near).index_select(0, places.which)).any()):
            return {}
        rms = (squares.values / places.sizes).sqrt_()
        limit = torch.tensor(limits).index_select(0, places.which)
        factor = rms.clamp_min_(1e-30).reciprocal_().mul_(limit).clamp_max_(1.0)
        if not bool((factor < 1).any()):
            return {}
        found: SegmentValues = {}
        for own, part in zip(squares.of, Squares(squares.of, factor).parts(), strict=True):
            for key, values in zip(own.keys, part, strict=True):
                if bool((values < 1).any()):
                    found[key] = values.view(()) if full_length(self.config, key) is None else values
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

    def _squares(self, item: Contribution) -> Squares:
        """Σx² of every segment. A tensor that is not cut as the model's are is one segment."""
        shapes = trained_shapes(self.config, item.spec)
        if isinstance(item.delta, FlatTensors) and item.delta.arranged.is_of(shapes):
            return segment_squares(item.delta, self.config, self._scratch)
        plain = self._plain(item)
        known = {name: tensor for name, tensor in item.delta.items() if name in plain}
        others = {name: tensor for name, tensor in item.delta.items() if name not in plain}
        own = segment_squares(known, self.config, self._scratch)
        if not others:
            return own
        of = tuple(Vectors((name,), 1, max(1, tensor.numel())) for name, tensor in others.items())
        sums = [tensor.square().sum().view(1) for tensor in others.values()]
        return Squares(own.of + of, torch.cat([own.values, *sums]))

    def _plain(self, item: Contribution) -> set[str]:
        """Names of tensors that are whole segments of the model."""
        shapes = trained_shapes(self.config, item.spec)
        return {name for name, tensor in item.delta.items() if shapes.get(name) == tuple(tensor.shape)}

    def _scaled(self, name: str, tensor: Tensor, factors: SegmentValues, plain: bool) -> Tensor:
        key = segment_key(self.config, name) if plain else name
        if key not in factors:
            return tensor
        return tensor * (expand(factors, name, self.config) if plain else factors[key])

    def _kinds(self, squares: Squares) -> dict[str, float]:
        """Root mean square of every kind of segment; without those that did not move: they say nothing of the rest."""
        if not squares.of:
            return {}
        sums: dict[str, tuple[float, int]] = {}
        totals = _totals(squares)
        for own in squares.of:
            total, count = sums.get(kind_of(own.keys[0]), (0.0, 0))
            for _ in own.keys:
                total += next(totals)
            sums[kind_of(own.keys[0])] = total, count + own.size * own.numbers
        return {kind: (total / count) ** 0.5 for kind, (total, count) in sums.items() if total > 0}

    # ------------------------------------------------------------ memory

    def _note(self, item: Contribution, squares: Squares) -> None:
        if not squares.of:
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
        """What was known of a device."""
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
