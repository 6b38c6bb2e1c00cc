"""Which device trains which block when: does every round cover every block (the paper's N* ≥ 1)?

Full participation is assumed: in round q every device runs its q-th cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cos2p.errors import ConfigError
from cos2p.models.config import ModelConfig
from cos2p.submodel.rates import Schedule, cut, growing_top, tier_offsets, window_start


@dataclass(frozen=True)
class Coverage:
    """How many devices train each block, round by round."""

    blocks: tuple[tuple[int, ...], ...]
    """[round][block]: devices that have the block in their trainable window."""
    top_exit: tuple[int, ...]
    """[round]: devices whose window ends at the last block, so that they train exit L."""

    @property
    def minimum(self) -> int:
        """N*: the fewest devices that train any block in any round. Zero: some block stands still in some round."""
        return min(min(row) for row in self.blocks)

    @property
    def uncovered(self) -> int:
        """Rounds in which some block is trained by nobody."""
        return sum(min(row) == 0 for row in self.blocks)

    def table(self) -> str:
        """Lines for people: fewest, mean and most devices for each block and for the last exit."""
        depth = len(self.blocks[0])
        columns = [*zip(*self.blocks, strict=True), self.top_exit]
        lines = [_line("block", [*range(depth), f"exit {depth}"])]
        lines.append(_line("fewest", [min(column) for column in columns]))
        lines.append(_line("mean", [f"{sum(column) / len(column):.1f}" for column in columns]))
        lines.append(_line("most", [max(column) for column in columns]))
        return "\n".join(lines)


def coverage_table(
    config: ModelConfig,
    rates: Sequence[float],
    ratio: float = 1.0,
    schedule: Schedule = "rolling",
    rounds: int = 100,
    offsets: Sequence[int] | None = None,
    first: int = 0,
) -> Coverage:
    """Play `rounds` rounds of a fleet with one keep rate per device; `offsets` default to those of the tiers.

    `first` as in the recipe; of a growing model these rounds are the whole run.

    >>> from cos2p import model_config
    >>> coverage_table(model_config("vit-tiny"), [1 / 16] + 7 * [9 / 16]).minimum
    2
    """
    if not rates or rounds < 1:
        raise ConfigError(f"coverage needs at least one device and one round, got {len(rates)} and {rounds}")
    sizes = [cut(config, rate, ratio).blocks for rate in rates]
    starts_at = tier_offsets(config.depth, sizes, first) if offsets is None else tuple(offsets)
    if len(starts_at) != len(sizes):
        raise ConfigError(f"{len(starts_at)} offsets for {len(sizes)} devices; give one for each")
    dispatched = [0] * config.depth
    rows, tops = [], []
    for cycle in range(rounds):
        row, top = [0] * config.depth, 0
        turn = growing_top(config.depth, max(sizes), cycle / rounds) if schedule == "growing" else cycle
        for blocks, offset in zip(sizes, starts_at, strict=True):
            start = window_start(schedule, dispatched, blocks, turn, offset, first)
            for block in range(start, start + blocks):
                dispatched[block] += 1
                row[block] += 1
            top += start + blocks == config.depth
        rows.append(tuple(row))
        tops.append(top)
    return Coverage(tuple(rows), tuple(tops))


def _line(title: str, cells: Sequence[object]) -> str:
    return f"  {title:<7}" + "".join(f"{cell!s:>6}" for cell in cells[:-1]) + f"{cells[-1]!s:>9}"
