"""A batch in parts: as many samples at a time as there is memory for, whose gradients add up to the batch's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from cos2p.training.distillation import IGNORED
from cos2p.training.losses import zero

Part = TypeVar("Part")


@dataclass(frozen=True, eq=False)
class MicroBatches(Generic[Part]):
    """The parts of a batch, each made when its turn comes: they are never in memory together."""

    rows: Sequence[Tensor]
    make: Callable[[Tensor], Part]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Part]:
        return map(self.make, self.rows)


def add_up(
    parts: Iterable[Part],
    evaluate: Callable[[Part], tuple[Tensor, Tensor, int]],
    parameters: Iterable[Tensor],
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """The gradients of a batch, from parts each of which counts by what it has to be right about.

    `evaluate` gives a part's objective and loss, both means, and over how many. Returns those of the whole batch.
    """
    objective, loss, total = zero(device), zero(device), 0
    for part in parts:
        own, reported, count = evaluate(part)
        own = own * count
        own.backward()
        objective, loss, total = objective + own.detach(), loss + reported.detach() * count, total + count
    share = 1.0 / max(1, total)
    torch._foreach_mul_([parameter.grad for parameter in parameters if parameter.grad is not None], share)
    return objective * share, loss * share


def counted(labels: Tensor) -> int:
    """Over how many a mean loss is taken: samples, or the tokens that a language model has to predict."""
    return int((labels != IGNORED).sum()) if labels.ndim == 2 and not labels.is_floating_point() else len(labels)
