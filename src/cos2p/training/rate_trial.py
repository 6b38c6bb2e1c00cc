"""`training.lr = "auto"`: a device tries a few learning rates before it trains, and reports what each did.

Every rate starts from the same weights and takes the same few steps with the method's own trainer; then the loss is
measured on samples held out of those steps. The rate is the highest of a ladder that does no harm: a few steps favour
short ones, a run that anneals its rate the longest that are safe, and over the edge losses rise many times. The task's
own training follows at this rate, with the bits of a task that was given it. The server pools what the devices report
(`server.orders.RateSearch`).

The trial takes at most as much computation as the task's training, no more memory, and no message. With a trainer that
looks at batches before its steps (Co-S²P's factors) each try looks again, which is counted and comes on top.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from cos2p.errors import TrainingError
from cos2p.messages import Order
from cos2p.models.spec import SubmodelSpec
from cos2p.seeding import torch_rng

if TYPE_CHECKING:
    from cos2p.training.contract import TaskContract
    from cos2p.training.trainer import Trainer

LADDERS: Mapping[str, tuple[float, ...]] = {
    "adan": (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3),
    "adamw": (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3),
    "sgd": (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
}
"""Rates that are tried, by optimiser, ascending. A step of an adaptive one moves every weight by about the rate. Fresh
models bear 1e-2 for a few steps, and every search of docs/results found less to be better for a run."""

FALLBACK = 3
"""Place in a ladder that a device begins at, and that is taken where nobody could try any."""
TRIES = 4
"""Rates that a device tries at most: from there down to the lowest."""

FEWEST_STEPS, MOST_STEPS = 2, 4
"""At each rate. The first step of an adaptive optimiser is its roughest: one alone would advise too low a rate."""
FEWEST = 8
"""Samples below which a device tries nothing."""
WORST = 100.0
"""Largest ratio to the first loss that is reported."""
HARM = 1.2
"""A rate is too high whose loss is more than so many times the first loss, or the lowest of the rates below."""


@dataclass(frozen=True)
class TrialSize:
    """How much a device tries at each rate."""

    steps: int
    batch: int
    held: int
    """Samples that the loss is measured on."""
    looks: int = 0
    """Batches that a trainer looks at before the steps of a try, and before the first loss."""

    @classmethod
    def of(cls, samples: int, batch: int, epochs: int) -> TrialSize | None:
        """As much as takes no longer than the task's training; None where that is nothing. A pass without gradients
        counts as a third of one with them.

        >>> TrialSize.of(samples=120, batch=16, epochs=1)
        TrialSize(steps=2, batch=11, held=15, looks=0)
        >>> TrialSize.of(samples=480, batch=16, epochs=1)
        TrialSize(steps=4, batch=16, held=60, looks=0)
        """
        held = samples // 8
        room = int((epochs * samples - (TRIES + 1) * held / 3) / TRIES)
        steps = max(FEWEST_STEPS, min(MOST_STEPS, room // batch))
        size = min(batch, room // steps, samples - held)
        return cls(steps, size, held) if samples >= FEWEST and size > 0 else None

    def share(self, samples: int, epochs: int) -> float:
        """The most that all tries take, as a share of the task's training."""
        looked = (TRIES + 1) * self.looks * self.batch
        return (TRIES * self.steps * self.batch + looked + (TRIES + 1) * self.held / 3) / (epochs * samples)


def trial_size(contract: TaskContract, samples: int) -> TrialSize | None:
    """None where a task tries nothing."""
    if not (contract.order.rates and contract.trains):
        return None
    size = TrialSize.of(samples, contract.local.batch, contract.local.epochs)
    return None if size is None else replace(size, looks=contract.looks)


def give(trainer: Trainer, order: Order) -> None:
    """Have the trainer go on with this order, which differs in its rate alone."""
    trainer.order, trainer.contract = order, copy.copy(trainer.contract)
    trainer.contract.order = order


def try_rates(trainer: Trainer, spec: SubmodelSpec) -> list[float]:
    """For each rate of the order, the loss after a few steps over the loss before; empty if there are too few samples.

    The trainer has its features and `start`, and is left as it is.
    """
    order, samples = trainer.order, len(trainer.shard.train)
    size = trial_size(trainer.contract, samples)
    if size is None:
        return []
    drawn = torch.randperm(samples, generator=_rng(order))
    held, rest = drawn[: size.held], drawn[size.held :]
    batches = [rest.roll(-step * size.batch)[: size.batch] for step in range(size.steps)]
    first = _loss_after(trainer, spec, order.lr, batches, held, steps=0)
    if not 0 < first < math.inf:
        return []

    def ratio_at(place: int) -> float:
        return min(WORST, _loss_after(trainer, spec, order.rates[place], batches, held) / first)

    return walk(len(order.rates), ratio_at)


def walk(places: int, ratio_at: Callable[[int], float]) -> list[float]:
    """The ratio found at each place of a ladder: from the middle up to the first that does harm, or down to one that
    does none. Places above are not tried and count as `WORST`; those below as 1, since shorter steps change less.

    >>> walk(6, [0.99, 0.9, 0.8, 0.9, 2.0, 9.0].__getitem__)
    [1.0, 1.0, 1.0, 0.9, 2.0, 100.0]
    >>> walk(6, [0.99, 0.9, 0.8, 0.5, 1.1, 9.0].__getitem__)
    [1.0, 1.0, 1.0, 0.5, 1.1, 100.0]
    >>> walk(6, [0.99, 0.9, 0.8, 1.3, 9.0, 9.0].__getitem__)
    [1.0, 1.0, 0.8, 1.3, 100.0, 100.0]
    """
    place = min(FALLBACK, places - 1)
    ratios = [1.0] * place + [ratio_at(place)] + [WORST] * (places - 1 - place)
    step = 1 if best_place(ratios) == place else -1
    while 0 <= place + step < places and (best_place(ratios) == place) == (step > 0):
        place += step
        ratios[place] = ratio_at(place)
    return ratios


def _loss_after(
    trainer: Trainer,
    spec: SubmodelSpec,
    rate: float,
    batches: Sequence[torch.Tensor],
    held: torch.Tensor,
    steps: int | None = None,
) -> float:
    """On the held-out rows, after a step on each of the batches (or on none); infinite if training breaks down."""
    trial = copy.copy(trainer)
    give(trial, replace(trainer.order, lr=rate, rates=()))
    trial.rng = _rng(trainer.order)
    trial.remembered = dict(trainer.remembered)
    # A trainer may look at some batches before its first step, more than once.
    trial.batches = lambda epochs: iter([*batches] * epochs)  # type: ignore[method-assign]
    trial.model = trial.build(spec)
    trial.model.train()
    trial.begin()
    trial.batches = lambda epochs: iter(batches)  # type: ignore[method-assign]
    try:
        if steps != 0:
            trial.fit()
    except TrainingError:
        return math.inf
    trial.model.eval()
    total, at_once = 0.0, trial.local.memory_optimizations.at_once(trial.local.batch)
    with torch.no_grad():
        for rows in held.split(at_once):
            batch = trial.batch(rows)
            total += float(trial.loss(trial.forward(batch), batch)) * len(rows)
    return total / len(held) if math.isfinite(total) else math.inf


def _rng(order: Order) -> torch.Generator:
    return torch_rng(order.seed, "rates", order.client, order.attempt)


# ---------------------------------------------------------------- what both sides make of it


def best_place(ratios: Sequence[float]) -> int:
    """The highest place of an ascending ladder up to which nothing does harm.

    >>> best_place([0.99, 0.9, 0.8, 0.9, 2.5, 1.1]), best_place([1.0, 0.5, 1.1]), best_place([1.3, 3.0])
    (3, 1, 0)
    """
    lowest = itertools.accumulate(ratios, min, initial=1.0)
    harmless = itertools.takewhile(lambda both: both[0] <= HARM * both[1], zip(ratios, lowest, strict=False))
    return max(0, sum(1 for _ in harmless) - 1)


def reported(ratios: Sequence[float]) -> dict[str, float]:
    """As figures of a report."""
    return {f"trial_{place}": ratio for place, ratio in enumerate(ratios)}


def read_report(order: Order, report: Mapping[str, Any]) -> list[float]:
    """The counterpart of `reported`, each between 0 and `WORST`; empty if one is missing or none of these."""
    found = [report.get(f"trial_{place}") for place in range(len(order.rates))]
    good = [x for x in found if isinstance(x, int | float) and not isinstance(x, bool) and 0 <= x <= WORST]
    return [*map(float, good)] if len(good) == len(found) else []


def at_own_rate(order: Order, report: Mapping[str, Any]) -> Order:
    """The order with the rate that the device trained at."""
    ratios = read_report(order, report)
    return replace(order, lr=order.rates[best_place(ratios)]) if ratios else order
