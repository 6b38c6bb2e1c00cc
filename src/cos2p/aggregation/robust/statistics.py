"""Statistics of features (`training.statistics`), compared with those of the fleet and bounded, class by class.

    counts      a device's samples of a class count up to the median of those who have the class
    means       a class mean that is too far from the fleet's (the geometric median) is moved to where it may be
    moments     the scatter inside a device's classes is at most twice the usual; what comes out is positive again
    length      that of the features, within half and twice the usual

How far a mean may be follows from how far the fleet's means usually are and from how few samples it is of. A device
whose means are too far in all of its classes together counts for nothing. Where fewer than three devices have a class
there is nothing to compare with: only the counts are bounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cos2p.aggregation.robust.combine import FEWEST, geometric_median
from cos2p.models.layout import Weights
from cos2p.training.statistics import packed, unpacked

FAR = 2.0
"""A mean may be so many times as far from the fleet's as is usual."""
ABSURD = 3.0
"""A device whose means are so many times as far as is usual counts for nothing."""
WIDE = 2.0
"""Scatter and lengths may be so many times the usual."""
KEPT_BYTES = 2**28
"""Bytes that may be kept of devices to compare later ones with."""


def is_statistics(extras: Mapping[str, Tensor]) -> bool:
    return "counts" in extras and any(name.endswith(".sums") for name in extras)


@dataclass(frozen=True, eq=False)
class Bounded:
    """A device's statistics as they count, and how many times as far as usual its class means were."""

    extras: Weights
    excess: float

    @property
    def counts(self) -> bool:
        return self.excess <= ABSURD


@dataclass
class StatisticsFilter:
    """State about the same features: those of the start, or those of the final round."""

    known: dict[str, Weights] = field(default_factory=dict)
    """Counts and sums of devices that reported earlier, as they counted."""

    def bound(self, arrived: Mapping[str, Weights]) -> dict[str, Bounded]:
        """By device. With fewer than three devices in all nothing is compared."""
        earlier = [extras for client, extras in self.known.items() if client not in arrived]
        everyone = [*arrived.values(), *earlier]
        found = [Bounded(extras, 0.0) for extras in arrived.values()]
        if len(everyone) >= FEWEST:
            depths = [name.removesuffix(".sums") for name in everyone[0] if name.endswith(".sums")]
            counts = torch.stack([extras["counts"].double() for extras in everyone])
            credit = credited_counts(counts)
            compared = {depth: _Means.of(everyone, depth, counts, credit) for depth in depths}
            far, usual = (
                torch.stack([getattr(each, name) for each in compared.values()]).sum(0) for name in ("far", "usual")
            )
            excess = (far / usual.clamp_min(1e-30)).sqrt().tolist()
            found = [
                Bounded(_rewritten(extras, credit[row], row, compared), excess[row])
                for row, extras in enumerate(arrived.values())
            ]
        done = dict(zip(arrived, found, strict=True))
        self._remember(done)
        return done

    def _remember(self, done: Mapping[str, Bounded]) -> None:
        for client, bounded in done.items():
            self.known.pop(client, None)
            if bounded.counts:
                kept = {n: t for n, t in bounded.extras.items() if n == "counts" or n.endswith(".sums")}
                self.known[client] = kept
                most = max(FEWEST, KEPT_BYTES // max(1, sum(tensor.nbytes for tensor in kept.values())))
                for oldest in list(self.known)[:-most]:
                    del self.known[oldest]


def credited_counts(counts: Tensor) -> Tensor:
    """Samples that count, by device and class: up to the median of the class, or of all classes if that is more.

    >>> credited_counts(torch.tensor([[10.0, 0.0], [12.0, 8.0], [100.0, 90.0], [11.0, 9.0]])).tolist()
    [[10.0, 0.0], [11.0, 8.0], [11.0, 11.0], [11.0, 9.0]]
    """
    claims = torch.where(counts > 0, counts, torch.nan)
    usual = claims.nanmedian(0).values.nan_to_num(0.0)
    return torch.minimum(counts, torch.maximum(usual, claims.flatten().nanmedian().nan_to_num(0.0)))


@dataclass(frozen=True, eq=False)
class _Means:
    """Class means of all devices at one depth."""

    bounded: Tensor
    """(devices, classes, dim), where they may be."""
    moved: Tensor
    """Devices with a mean that was too far."""
    far: Tensor
    usual: Tensor
    """By device: sums of squared distances to the fleet's means, as they are and as they usually are."""
    length: float
    """Mean length of features, in the median of the devices."""
    scatter: float
    """Mean squared distance of a sample from its class mean, in the median of the devices."""

    @classmethod
    def of(cls, everyone: Sequence[Weights], depth: str, counts: Tensor, credit: Tensor) -> _Means:
        present = counts > 0
        means = (
            torch.stack([extras[f"{depth}.sums"].double() for extras in everyone]) / counts.clamp_min(1e-9)[..., None]
        )
        centre = geometric_median(means, credit[..., None])
        distance = torch.linalg.vector_norm(means - centre, dim=2)
        typical = torch.where(present, distance, torch.nan).nanmedian(0).values.nan_to_num(0.0)
        inside = (1 - centre.square().sum(1)).clamp_min(0)  # unit vectors: what their mean lacks in length is scatter
        usual = (typical.square() + inside / credit.clamp_min(1e-9)).sqrt()
        compared = present & (present.sum(0) >= FEWEST)
        shorter = torch.where(compared, FAR * usual / distance.clamp_min(1e-30), 1.0).clamp_max(1.0)
        weight = torch.where(compared, credit, 0.0)
        lengths = [
            float(e[f"{depth}.length"] / e["counts"].sum().clamp_min(1)) for e in everyone if f"{depth}.length" in e
        ]
        samples = counts.sum(1).clamp_min(1e-9)
        spread = 1 - (counts * means.square().sum(2)).sum(1) / samples
        return cls(
            torch.where(shorter[..., None] < 1, centre + (means - centre) * shorter[..., None], means),
            (shorter < 1).any(1),
            (weight * distance.square()).sum(1),
            (weight * usual.square()).sum(1),
            float(torch.tensor(lengths).median()),
            float(spread.median()),
        )


def _rewritten(extras: Weights, credit: Tensor, row: int, compared: Mapping[str, _Means]) -> Weights:
    """With credited counts, bounded means, and moments that fit both. Where nothing is too much, the very tensors."""
    counts, found = extras["counts"].double(), dict(extras)
    samples, less = float(counts.sum()), not torch.equal(credit, counts)
    if less:
        found["counts"] = credit.float()
    share = float(credit.sum()) / max(samples, 1e-9)
    for depth, means in compared.items():
        sums, length = extras[f"{depth}.sums"].double(), float(extras[f"{depth}.length"])
        fair = min(max(length, samples * means.length / WIDE), samples * means.length * WIDE)
        if less or fair != length:
            found[f"{depth}.length"] = extras[f"{depth}.length"].new_tensor(share * fair)
        new = credit[:, None] * means.bounded[row]
        if less or bool(means.moved[row]):
            found[f"{depth}.sums"] = new.float()
        if f"{depth}.moments" in extras:
            own = (sums / counts.clamp_min(1e-9)[:, None]).T @ sums
            inside = unpacked(extras[f"{depth}.moments"].double(), sums.shape[1]) - own
            narrower = min(1.0, WIDE * means.scatter * samples / max(float(inside.diagonal().sum()), 1e-30))
            if less or bool(means.moved[row]) or narrower < 1:
                between = new.T @ means.bounded[row]
                found[f"{depth}.moments"] = packed(share * narrower * inside + between).float()
    return found
