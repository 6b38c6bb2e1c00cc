"""PruneFL's reconfiguration (its Section IV and Algorithm 2) as pure functions over numbered segments."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

_EPSILON = 1e-9


def reconfigure(
    sizes: Collection[int],
    before: Mapping[int, Sequence[int]] | None,
    score: Tensor,
    magnitude: Tensor,
    turnover: float,
    admitted: Collection[int] | None = None,
) -> dict[int, list[int]]:
    """New sets of segments, one for each of the sizes, the smaller inside the larger.

    Of every old set the `turnover` share that is weakest by magnitude may go; all others stay. The places go to the
    best by score of all segments that have none, those that may go included (or of the `admitted` ones). So no set
    loses more than `turnover` of its members. Without old sets the best by score are taken; ties by number.

    >>> score = torch.tensor([1.0, 2.0, 3.0, 4.0])
    >>> reconfigure([2], {2: [0, 1]}, score, magnitude=score, turnover=0.5)
    {2: [1, 3]}
    """
    by_score = _falling(score)
    if admitted is not None:
        worth = set(admitted)
        by_score = [number for number in by_score if number in worth]
    new: dict[int, list[int]] = {}
    inner: list[int] = []
    for size in sorted(set(sizes)):
        stay = [] if before is None else strongest(before[size], magnitude, size, turnover)
        chosen = dict.fromkeys(inner)
        for number in (*stay, *by_score):
            if len(chosen) >= size:
                break
            chosen[number] = None
        inner = list(chosen)
        new[size] = inner
    return new


def strongest(members: Sequence[int], magnitude: Tensor, size: int, turnover: float) -> list[int]:
    """The members that must stay, strongest first."""
    removable = math.floor(turnover * size + _EPSILON)
    values = magnitude.tolist()
    return sorted(members, key=lambda number: (-values[number], number))[: max(0, len(members) - removable)]


def _falling(score: Tensor) -> list[int]:
    order: list[int] = torch.sort(score, descending=True, stable=True).indices.tolist()
    return order


def worth_their_time(gain: Tensor, time: Tensor, kept: Collection[int], constant: float) -> list[int]:
    """The segments to take next to the `kept` ones so that Γ = Σ gain / (constant + Σ time) is largest.

    PruneFL's greedy rule: by falling gain per time, as long as that is above the Γ of what is in already.
    """
    inside = set(kept)
    gains, times = gain.tolist(), time.tolist()
    total = sum(gains[i] for i in inside)
    spent = constant + sum(times[i] for i in inside)
    taken: list[int] = []
    for number in _falling(gain / time):
        if number in inside:
            continue
        if spent > 0 and gains[number] / times[number] <= total / spent:
            break
        total, spent = total + gains[number], spent + times[number]
        taken.append(number)
    return taken


def fill_unknown(estimate: Tensor, segments: int) -> Tensor:
    """Replace what is not known (nan) by the median of its block, or of all blocks if nothing is known of it."""
    blocks = estimate.view(-1, segments)
    medians = torch.nanmedian(blocks, dim=1).values
    overall = torch.nanmedian(estimate)
    medians = torch.where(medians.isnan(), overall.nan_to_num(), medians)
    return torch.where(blocks.isnan(), medians[:, None], blocks).flatten()
