"""A round's updates side by side: what is made of all of them.

Tensor by tensor, so that next to the updates only one stack of them is in memory. Nothing here depends on the merge but
where the parts of an update lie in the full tensors (`Merge.places`); whatever a merge then does with equal steps, it
does with the combined one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cos2p.aggregation.merge import Contribution, Merge, Place
from cos2p.aggregation.robust.combine import combine
from cos2p.aggregation.robust.standing import Opinion
from cos2p.aggregation.settings import RobustSettings
from cos2p.models.layout import Weights

BELIEVED = 0.1
"""Least trust with which an update has a say in a combination."""


@dataclass(frozen=True, eq=False)
class Weighed:
    """An update as it is added, and what was thought of it."""

    item: Contribution
    opinion: Opinion


@dataclass(frozen=True, eq=False)
class Stack:
    """One tensor of all updates that have it, at full size; not a number where an update does not hold a scalar."""

    name: str
    who: Sequence[int]
    """Numbers of these updates in the round."""
    where: Sequence[Place]
    values: Tensor


def weigh(
    items: Sequence[Contribution],
    merge: Merge,
    current: Weights,
    settings: RobustSettings,
    opinions: Sequence[Opinion],
) -> list[Weighed]:
    """The round's updates, each as much as it is believed, and combined."""
    trust = [opinion.trust for opinion in opinions]
    deltas = [dict(item.delta) for item in items]
    if settings.combine != "mean" or min(trust) < 1.0:
        _shorten(deltas, trust)
        for stack in _stacks(items, merge, current):
            for number, place, step in _believed(stack, items, trust, settings):
                deltas[number][stack.name] = step[place].reshape(deltas[number][stack.name].shape)
    return [
        Weighed(replace(item, delta=delta), opinion)
        for item, delta, opinion in zip(items, deltas, opinions, strict=True)
    ]


def _shorten(deltas: Sequence[Weights], trust: Sequence[float]) -> None:
    """A doubted update counts less. Where a tensor's place in the model is known, the others' word comes instead."""
    for delta, share in zip(deltas, trust, strict=True):
        if share < 1.0:
            delta |= {name: tensor * share for name, tensor in delta.items()}


def _stacks(items: Sequence[Contribution], merge: Merge, current: Weights) -> Iterator[Stack]:
    """For every tensor whose place in the model is known."""
    places: list[Mapping[str, Place]] = [merge.places(item) for item in items]
    for name in dict.fromkeys(name for item in items for name in item.delta):
        who = [n for n, item in enumerate(items) if name in item.delta and name in places[n] and name in current]
        if not who:
            continue
        values = torch.full((len(who), *current[name].shape), torch.nan)
        for row, number in enumerate(who):
            values[row][places[number][name]] = items[number].delta[name]
        yield Stack(name, who, [places[number][name] for number in who], values)


def _others(
    values: Tensor,
    held: Tensor,
    row: int,
    who: Sequence[int],
    items: Sequence[Contribution],
    weights: Sequence[float],
) -> tuple[Tensor, Tensor]:
    """The sum of what other devices say, each as much as it is believed, and the sum of these weights."""
    own = items[who[row]].client
    share = torch.tensor([weights[n] if items[n].client != own else 0.0 for n in who])
    share = share.view(-1, *(1,) * (values.ndim - 1))
    return (values * share).sum(0), (held * share).sum(0)


def _believed(
    stack: Stack, items: Sequence[Contribution], trust: Sequence[float], settings: RobustSettings
) -> Iterator[tuple[int, Place, Tensor]]:
    """Each update's new step of this tensor, at full size.

    What a device is not believed is filled in with what the others say, so that its step neither counts nor dilutes
    theirs; where nobody else says anything its step is shortened.
    """
    shares = [trust[number] for number in stack.who]
    held, values = ~stack.values.isnan(), stack.values.nan_to_num(0.0)
    centre = None
    if settings.combine != "mean":
        believed = [row for row, share in enumerate(shares) if share >= BELIEVED]
        if believed:
            centre = combine(stack.values[believed], settings.combine)
    for row, (number, place) in enumerate(zip(stack.who, stack.where, strict=True)):
        step = values[row]
        if shares[row] < 1.0:
            others, count = _others(values, held, row, stack.who, items, trust)
            filled = torch.where(count > 0, others / count.clamp_min(1e-30), 0.0)
            step = torch.lerp(filled, step, shares[row])
        elif centre is None:
            continue
        yield number, place, step if centre is None else torch.where(centre.isnan(), step, centre)
