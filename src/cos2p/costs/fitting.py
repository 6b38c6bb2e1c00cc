"""From a rate, or from a memory budget, to a submodel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cos2p.costs.budget import largest_rate, shape_peak
from cos2p.costs.ledger import last_holding
from cos2p.costs.shape import Shape
from cos2p.costs.workload import Workload
from cos2p.errors import BudgetError, ConfigError
from cos2p.models.config import ModelConfig
from cos2p.models.spec import BlockKeep, SubmodelSpec
from cos2p.seeding import torch_rng
from cos2p.submodel.rates import cut, spread
from cos2p.submodel.window import exit_depths, positions
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
