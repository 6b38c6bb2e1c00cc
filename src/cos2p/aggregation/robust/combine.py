"""One step out of several that cannot all be believed: scalar by scalar, or row by row.

A stack holds the same tensor of several updates, at full size, not a number where an update does not hold a scalar.
Where fewer than three hold one there is no majority: the result is not a number there, and everybody's own step stays.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cos2p.aggregation.settings import Combine

FEWEST = 3
"""Holders among whom one malicious device is outvoted."""

TRIMMED = 0.25
"""Share that the trimmed mean leaves out at each end, at least one."""

_STEPS = 24
"""Steps of Weiszfeld's iteration: where most agree, each halves the distance to them."""
_TINY = 1e-30


def combine(stack: Tensor, rule: Combine) -> Tensor:
    """The step on which the updates agree; `stack` has one update in each row of its first axis."""
    held = ~stack.isnan()
    count = held.sum(0)
    if rule == "geometric":
        centre = _geometric(stack, held)
    else:
        centre = _by_rank(stack, count, rule)
    return torch.where(count >= FEWEST, centre, torch.nan)


def _by_rank(stack: Tensor, count: Tensor, rule: Combine) -> Tensor:
    """Mean of the values in the middle: of one or two for the median, of all but the outermost for the trimmed mean."""
    ordered = stack.sort(0).values  # what is not a number comes last
    if rule == "median":
        cut = (count - 1).clamp_min(0) // 2
    else:
        cut = (TRIMMED * count).floor().long().clamp_min(1)
        cut = torch.minimum(cut, (count - 1).clamp_min(0) // 2)
    rank = torch.arange(len(stack)).view(-1, *(1,) * (stack.ndim - 1))
    kept = (rank >= cut) & (rank < count - cut)
    return torch.where(kept, ordered, 0.0).sum(0) / kept.sum(0).clamp_min(1)


def _geometric(stack: Tensor, held: Tensor) -> Tensor:
    """The point nearest to all, row by row (of a vector: as a whole), by Weiszfeld's iteration from the mean."""
    shape = stack.shape[1:]
    rows = (len(stack), *((shape[0], -1) if len(shape) > 1 else (1, -1)))
    return geometric_median(stack.nan_to_num(0.0).reshape(rows), held.reshape(rows).float()).reshape(shape)


def geometric_median(values: Tensor, weight: Tensor) -> Tensor:
    """The geometric median along the first axis; rows without weight do not count."""
    held, now = weight > 0, weight
    for _ in range(_STEPS):
        centre = (values * now).sum(0) / now.sum(0).clamp_min(_TINY)
        distance = torch.where(held, values - centre, 0.0).square().sum(-1, keepdim=True).sqrt()
        now = weight / distance.clamp_min(1e-12)
        now = now / now.amax(0).clamp_min(_TINY)
    return (values * now).sum(0) / now.sum(0).clamp_min(_TINY)
