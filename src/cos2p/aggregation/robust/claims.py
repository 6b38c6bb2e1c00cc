"""How many samples a device has is what it says. Where they count, they count up to a multiple of the fleet's median.

An update may not claim more samples than its device had when it joined (the update reader); but that, too, was its own
word. So whatever a server weighs by samples (`weights = "samples"`, sums of features, scores) it weighs by the credited
ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from statistics import median_low

from cos2p.messages import Update

MIN_DEVICES = 3
"""Fewest devices whose median says something of the fleet."""


def most_credited(claims: Iterable[int], factor: float) -> float:
    """Samples of one device that count; all where there are too few devices to compare with, or `factor` is 0.

    >>> most_credited([100, 120, 2**31], 10.0)
    1200.0
    """
    counts = list(claims)
    if not factor or len(counts) < MIN_DEVICES:
        return float("inf")
    return max(1.0, factor * median_low(counts))


def credited(update: Update, most: float) -> Update:
    """The update with at most so many samples; sums over them count as if they were over that many."""
    if update.samples <= most:
        return update
    share, extras = most / update.samples, update.extras
    if "counts" in extras:  # sums of features, by class: `training.statistics`
        extras = {name: tensor * share for name, tensor in extras.items()}
    return replace(update, samples=int(most), extras=extras)
