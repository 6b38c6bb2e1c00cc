"""What fits a device: the largest rate, the refusal of what does not fit, and how the mask phase is made to fit.

Nothing here allocates anything: all of it is read off the `ledger`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace

from cos2p.costs.flops import Phase, flops, task_flops
from cos2p.costs.ledger import Ledger, last_holding, ledger, peak, prefix_batch, shape_ledger, shape_peak
from cos2p.costs.shape import WHOLE, Shape, Tables
from cos2p.costs.workload import Workload
from cos2p.errors import BudgetError
from cos2p.models.config import ModelConfig
from cos2p.models.spec import BlockSize, SubmodelSpec
from cos2p.submodel.rates import cut
from cos2p.units import format_bytes, parse_bytes

__all__ = [
    "Ledger",
    "MaskPlan",
    "Phase",
    "Workload",
    "flops",
    "largest_rate",
    "ledger",
    "mask_plan",
    "peak",
    "prefix_batch",
    "require",
    "shape_ledger",
    "shape_peak",
    "task_flops",
]


def largest_rate(
    config: ModelConfig,
    memory: int | str,
    workload: Workload,
    ratio: float = 1.0,
    start: int | None = None,
    tier_blocks: tuple[int, ...] = (),
    tables: Tables = WHOLE,
) -> float:
    """The largest rate whose submodel fits at every window position (or at `start`); 0.0 if none does.

    Bytes rise with the rate as long as the number of blocks stays; a submodel of one block less and wider may need
    less. So the rates of each number of blocks are searched apart, the deepest first.
    """
    budget = parse_bytes(memory)

    def shapes(rate: float) -> Iterator[Shape]:
        if start is not None:
            yield Shape.at(config, rate, ratio, start, tier_blocks, tables=tables)
            return
        # Bottom and top are the worst places; in which blocks the remainder of the segments lies makes a difference.
        blocks = cut(config, rate, ratio).blocks
        for place in {0, config.depth - blocks}:
            yield from {Shape.at(config, rate, ratio, place, tier_blocks, turn, tables) for turn in range(blocks)}

    def fits(rate: float) -> bool:
        if start is not None and start + cut(config, rate, ratio).blocks > config.depth:
            return False
        return all(shape_peak(config, shape, workload).total <= budget for shape in shapes(rate))

    for low, high in _steps_of_depth(config, ratio):
        if fits(low / _RATES):
            return last_holding(low, high, lambda i: fits(i / _RATES)) / _RATES
    return 0.0


def _steps_of_depth(config: ModelConfig, ratio: float) -> Iterator[tuple[int, int]]:
    """The first and last rate (in `_RATES`) of every number of blocks, the deepest first."""
    high = _RATES
    while high > 0:
        blocks = cut(config, high / _RATES, ratio).blocks
        below = bisect_left(range(1, high + 1), blocks, key=lambda i: cut(config, i / _RATES, ratio).blocks)
        yield below + 1, high
        high = below


_RATES = 2**20  # rates are searched in steps of a millionth


def require(
    config: ModelConfig, spec: SubmodelSpec, workload: Workload, memory: int | str, ratio: float = 1.0
) -> Ledger:
    """The ledger of a task's worst phase, or BudgetError if that is more than `memory`. Nothing is allocated."""
    budget = parse_bytes(memory)
    needed = peak(config, spec, workload)
    if needed.total <= budget:
        return needed
    rate = largest_rate(config, budget, workload, ratio)
    if rate > 0.0:
        advice = f"the largest rate that fits at every window position is {_rounded_down(rate)}"
    else:
        advice = f"no submodel of this model fits; a smaller batch (now {workload.micro} at a time) needs less"
    raise BudgetError(
        f"the submodel needs {format_bytes(needed.total)} in its {needed.phase} phase, "
        f"but the device has {format_bytes(budget)}; {advice}"
    )


def _rounded_down(rate: float) -> str:
    return f"{math.floor(rate * 10_000) / 10_000 or rate:.4g}"


@dataclass(frozen=True)
class MaskPlan:
    """How the mask phase fits the budget: candidates of every window block, and samples at a time."""

    heads: tuple[int, ...]
    units: tuple[int, ...]
    micro_batch: int


def mask_plan(config: ModelConfig, spec: SubmodelSpec, workload: Workload, memory: int | str | None = None) -> MaskPlan:
    """How many candidates the mask phase may hold, in `memory` or in what the submodel's own training needs.

    Frozen weights cost 4 bytes a scalar where training with Adan costs 24, so often all segments of the window fit.
    First the micro-batch shrinks, down to one sample: accumulated gradients are the same. If that is not enough, each
    block gets as many candidates beyond the kept ones as fit, in equal shares; the device rotates them.
    """
    shape = Shape.of(config, spec)
    budget = shape_peak(config, shape, workload).total if memory is None else parse_bytes(memory)

    def window(share: int) -> tuple[BlockSize, ...]:
        return tuple(
            BlockSize(
                size.heads + (config.groups - size.heads) * share // _SHARES,
                size.units + (config.mlp - size.units) * share // _SHARES,
            )
            for size in shape.window
        )

    def needed(share: int, micro: int) -> int:
        wide = replace(shape, window=window(share))
        return shape_ledger(config, wide, replace(workload, micro_batch=micro, step_in_backward=False), "mask").total

    micro = workload.micro
    while micro > 1 and needed(_SHARES, micro) > budget:
        micro = (micro + 1) // 2
    if needed(0, micro) > budget:
        raise BudgetError(
            f"the mask phase needs {format_bytes(needed(0, micro))} even with the kept segments alone and one sample "
            f"at a time, but has {format_bytes(budget)}; choose a smaller rate"
        )
    chosen = window(last_holding(0, _SHARES, lambda share: needed(share, micro) <= budget))
    return MaskPlan(tuple(size.heads for size in chosen), tuple(size.units for size in chosen), micro)


_SHARES = 4096
