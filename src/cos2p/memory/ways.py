"""How a task is made to fit: of all ways to save bytes the one that takes least time.

A method leaves `auto` in a task's settings where it does not mind. Here that becomes a choice, by the trainer's ledger:

    features    behind what is frozen: in memory, or in a file
    stream      frozen blocks with adapters: held in 32 bits, or read from disk in 16 or 8 whenever they run
    recompute   blocks that run again in the backward
    parts       of a batch, whose gradients add up
    step_in_backward, eight_bit    gradients one by one, states of the optimiser in 8 bits

`_COST` has what each costs in time. States in 8 bits are the last: they are not exact, and twice the window that they
make room for gained 0.3 ± 3.3 points (docs/results/pretrained.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from typing import Any

from cos2p.costs.ledger import last_holding
from cos2p.costs.shape import Shape
from cos2p.memory.tasks import Assignment, Member, Planned, make_order
from cos2p.messages import Order, Wire
from cos2p.models.config import ModelConfig
from cos2p.models.spec import BlockSize
from cos2p.training.settings import LocalSettings, settled, with_local
from cos2p.training.trainer import Trainer

Way = dict[str, Any]
"""Fields that were `auto`, with what they become."""

_COST: dict[str, float] = {
    "features": 0.03,
    "step_in_backward": 0.07,
    "eight_bit": 100.0,
    "recompute": 0.33,
    "stream": 0.6,
}
"""The time that each adds to a task, as a share of it: estimates after docs/results/memory.md, `stream` a guess."""
_PART = 0.15
"""And every part of a batch beyond the first; of streamed blocks, which each part reads again, twice that."""
_SAVED: Way = {"features": "disk", "step_in_backward": True, "eight_bit": True, "recompute": "yes", "stream": True}
QUARTER = 4
"""Into so many parts a batch is cut for a larger window: smaller ones save little (docs/results/memory.md)."""


def room(method: Planned, member: Member) -> float:
    """Bytes that a task of the member may take: those it has, or fewer since a task ran out of them."""
    context = method.context
    if context.as_bound and method.over_budget:
        return math.inf
    limits = [member.largest] if member.largest else []
    if context.enforce_memory or member.auto:
        limits.append(member.device.memory)
    return min(limits, default=math.inf)


def fitted_order(method: Planned, member: Member, assignment: Assignment, **facts: Any) -> Order:
    """The task as it is given out, made to fit as quickly as can be; one that fits in no way, in the smallest.

    `facts` of the order as in `make_order`.
    """
    case = _case(method, member, assignment, room(method, member), **facts)
    way = _quickest(case)
    return _with(case.order, assignment, _smallest(case) if way is None else way)


def least_bytes(method: Planned, member: Member, assignment: Assignment, exact: bool = False) -> int:
    """Bytes of the task in its smallest way. `exact`: without 8 bits, of windows with a quarter of a batch at least."""
    return _least(_case(method, member, assignment, 0.0), exact)


def needed_bytes(method: Planned, member: Member, assignment: Assignment) -> int:
    """Bytes of the worst moment of a task as it is given out, by the ledger; nothing is allocated."""
    order = fitted_order(method, member, assignment)
    return assignment.trainer.contract_of(method.context.config, order).memory(member.samples).total


# ---------------------------------------------------------------- of equal tasks one is looked at


@dataclass(frozen=True)
class _Case:
    """All that the bytes of a task depend on."""

    config: ModelConfig
    trainer: type[Trainer]
    shape: Shape
    quotas: tuple[BlockSize, ...] | None
    wire: Wire
    settings: str
    samples: int
    room: float
    order: Order = field(compare=False)
    assigned: Assignment = field(compare=False)

    def needed(self, way: Way) -> int:
        order = _with(self.order, self.assigned, way)
        return self.trainer.contract_of(self.config, order).memory(self.samples).total

    @property
    def local(self) -> LocalSettings:
        settings: Any = self.assigned.settings
        return settings if isinstance(settings, LocalSettings) else settings.local


def _case(method: Planned, member: Member, assignment: Assignment, limit: float, **facts: Any) -> _Case:
    config = method.context.config
    order = make_order(method, member, assignment, **facts)
    written = json.dumps(assignment.settings.model_dump(mode="json"), sort_keys=True)
    shape = Shape.of(config, order.spec)
    return _Case(
        config, assignment.trainer, shape, order.quotas, order.wire, written, member.samples, limit, order, assignment
    )


def _with(order: Order, assignment: Assignment, way: Way) -> Order:
    if not way:
        return order
    features = {"features": way["features"]} if "features" in way else {}
    memory_optimizations = {name: value for name, value in way.items() if name != "features"}
    settings = settled(with_local(assignment.settings, memory_optimizations, **features))
    return replace(order, settings=settings.model_dump(mode="json"))


def _open(case: _Case) -> list[str]:
    """Fields that are `auto` and that the task's trainer can follow."""
    fields = {"features": case.local.features, **dict(case.local.memory_optimizations)}
    can = {"features", *case.trainer.supports}
    return [name for name, value in fields.items() if value == "auto" and name in can]


def _combinations(case: _Case) -> Iterator[tuple[float, Way, list[int]]]:
    """The cost of each with the batch at once; what it saves; and into which parts the batch may be cut."""
    open_fields = _open(case)
    names = [name for name in _SAVED if name in open_fields]
    batch = min(case.local.batch, max(1, case.samples))
    parts = sorted({-(-batch // count) for count in range(1, batch + 1)}) if "micro_batch" in open_fields else [batch]
    for chosen in product((False, True), repeat=len(names)):
        way = {name: _SAVED[name] for name, yes in zip(names, chosen, strict=True) if yes}
        if way.get("stream") and "recompute" in way:
            continue  # they run again in any case
        if way.get("step_in_backward") and case.local.memory_optimizations.micro_batch not in (0, "auto"):
            continue  # the recipe cuts batches, whose gradients add up before the step
        together = way.get("step_in_backward") or case.local.memory_optimizations.step_in_backward is True
        yield sum(_COST[name] for name in way), way, [batch] if together else parts


def _cut(way: Way, at_once: int, batch: int) -> Way:
    return way if at_once >= batch else {**way, "micro_batch": at_once}


@lru_cache(maxsize=4096)
def _quickest(case: _Case) -> Way | None:
    """None if no way fits."""
    if case.room == math.inf or case.needed({}) <= case.room:
        return {}
    best: tuple[float, Way] | None = None
    for cost, way, parts in sorted(_combinations(case), key=lambda found: found[0]):
        if best is not None and cost >= best[0]:
            break
        batch = parts[-1]
        if case.needed(_cut(way, parts[0], batch)) > case.room:
            continue
        place = last_holding(0, len(parts) - 1, lambda i: case.needed(_cut(way, parts[i], batch)) <= case.room)  # noqa: B023
        each = _PART * (2 if way.get("stream") else 1)
        cost += each * (-(-batch // parts[place]) - 1)
        if best is None or cost < best[0]:
            best = cost, _cut(way, parts[place], batch)
    return None if best is None else best[1]


@lru_cache(maxsize=4096)
def _smallest(case: _Case) -> Way:
    ways = [_cut(way, parts[0], parts[-1]) for _, way, parts in _combinations(case)]
    return min(ways, key=case.needed)


@lru_cache(maxsize=4096)
def _least(case: _Case, exact: bool) -> int:
    found = []
    for _, way, parts in _combinations(case):
        if exact and way.get("eight_bit"):
            continue
        window = exact and not hasattr(case.local, "rank") and case.trainer.contract_type.trains
        allowed = [part for part in parts if not window or QUARTER * part >= parts[-1]]
        found.append(case.needed(_cut(way, allowed[0], parts[-1])))
    return min(found)
