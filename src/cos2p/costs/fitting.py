"""Submodels that fit a device: from a rate, or from a memory budget; and how the mask phase is made to fit.

Nothing here allocates anything: all of it is read off the ledger.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from cos2p.costs.ledger import last_holding, shape_ledger, shape_peak
from cos2p.costs.shape import WHOLE, Shape, Tables, Workload
from cos2p.errors import BudgetError, ConfigError
from cos2p.models.config import ModelConfig
from cos2p.models.spec import BlockKeep, BlockSize, SubmodelSpec
from cos2p.seeding import torch_rng
from cos2p.submodel.rates import cut, exit_depths, positions, spread
from cos2p.units import format_bytes, parse_bytes


def make_spec(
    config: ModelConfig,
    rate: float,
    start: int = 0,
    ratio: float = 1.0,
    seed: int | None = None,
    tier_blocks: Sequence[int] | None = None,
) -> SubmodelSpec:
    """The submodel of keep rate `rate` whose window begins at block `start`.

    `ratio` is R_width / R_depth (see `rates.cut`). Without a seed the leading heads and units are kept, otherwise
    random ones. `tier_blocks` lists the depths of the fleet's tiers, for the exits; by default the deepest exit alone.

    >>> from cos2p import model_config
    >>> spec = make_spec(model_config("vit-tiny"), 0.25, start=2)
    >>> spec.frozen, spec.top, len(spec.window[0].heads), len(spec.window[0].units)
    (2, 6, 4, 1024)
    """
    size = cut(config, rate, ratio)
    places = positions(config.depth, size.blocks)
    if not 0 <= start < places:
        raise ConfigError(
            f"start {start}: a window of {size.blocks} blocks in a model of {config.depth} "
            f"begins at block 0 to {places - 1}"
        )
    window = []
    for offset, (heads, units) in enumerate(
        zip(spread(size.heads, size.blocks, start), spread(size.units, size.blocks, start), strict=True)
    ):
        block = start + offset
        window.append(
            BlockKeep.of(
                _choose(config.groups, heads, seed, "heads", block), _choose(config.mlp, units, seed, "units", block)
            )
        )
    return SubmodelSpec(start, tuple(window), exit_depths(start, size.blocks, tier_blocks or ())).check(config)


def _choose(segments: int, count: int, seed: int | None, kind: str, block: int) -> Sequence[int]:
    if seed is None:
        return range(count)
    order: list[int] = torch.randperm(segments, generator=torch_rng(seed, "spec", kind, block)).tolist()
    return order[:count]


def fit_submodel(
    config: ModelConfig,
    memory: int | str = "600MB",
    batch: int = 8,
    start: int = 0,
    ratio: float = 1.0,
    seed: int | None = None,
    tier_blocks: Sequence[int] | None = None,
    **workload: Any,
) -> SubmodelSpec:
    """The largest submodel that trains in `memory` with its window at block `start`. Nothing is allocated.

    `workload` are further fields of `Workload`: optimizer, samples, prefix, features, ...

    >>> from cos2p import model_config
    >>> len(fit_submodel(model_config("vit-base"), "600MB").window)
    5
    """
    work, tiers = Workload(batch=batch, **workload), tuple(tier_blocks or ())
    rate = largest_rate(config, memory, work, ratio, start, tiers)
    if rate == 0.0:
        raise BudgetError(
            f"no submodel of this model with its window at block {start} trains in {format_bytes(parse_bytes(memory))} "
            f"with {work.micro} samples at a time; a smaller batch or micro_batch, or features='disk', needs less"
        )
    blocks = cut(config, rate, ratio).blocks
    if start + blocks == config.depth:  # no room for one block more: what is left goes into the width
        rate, ratio = _widest(config, parse_bytes(memory), work, start, tiers)
    return make_spec(config, rate, start, ratio, seed, tier_blocks)


def _widest(
    config: ModelConfig, memory: int, workload: Workload, start: int, tier_blocks: tuple[int, ...]
) -> tuple[float, float]:
    """Rate and width/depth ratio of the widest submodel from block `start` to the top that fits."""
    share = (config.depth - start) / config.depth
    steps = config.groups * config.mlp

    def fits(step: int) -> bool:
        width = step / steps
        shape = Shape.at(config, width * share, width / share, start, tier_blocks)
        return shape_peak(config, shape, workload).total <= memory

    width = last_holding(1, steps, fits) / steps
    return width * share, width / share


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
