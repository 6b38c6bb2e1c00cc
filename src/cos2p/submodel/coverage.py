"""Who trains which block when: does every round cover every block (the paper's N* ≥ 1)?

    python -m cos2p.submodel.coverage        prints the table for the paper's three fleets

Full participation is assumed: in round q every device runs its q-th cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cos2p.errors import ConfigError
from cos2p.models.config import ModelConfig
from cos2p.models.sizes import model_config
from cos2p.submodel.rates import Schedule, cut, growing_top, tier_offsets, window_start

FLEETS: dict[str, tuple[str, tuple[tuple[int, float], ...]]] = {
    "E1": ("vit-tiny", ((1, 1 / 16), (7, 9 / 16))),
    "E2": ("vit-base", ((6, 1 / 16), (10, 9 / 16))),
    "E3": ("vit-base-ext", ((1, 1 / 64), (2, 1 / 16), (3, 1 / 4), (10, 9 / 16))),
}
"""The paper's fleets: model, and (devices, keep rate) for each tier. Its .0156 is 1/64: the rounded number would
floor √R·16 blocks to one instead of two."""


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


def fleet_rates(tiers: Sequence[tuple[int, float]]) -> list[float]:
    """One rate for each device.

    >>> fleet_rates([(1, 0.25), (2, 0.5)])
    [0.25, 0.5, 0.5]
    """
    return [rate for count, rate in tiers for _ in range(count)]


def _line(title: str, cells: Sequence[object]) -> str:
    return f"  {title:<7}" + "".join(f"{cell!s:>6}" for cell in cells[:-1]) + f"{cells[-1]!s:>9}"


def main(rounds: int = 120) -> None:
    schedules: tuple[Schedule, ...] = ("rolling", "balanced")
    for name, (size, tiers) in FLEETS.items():
        config, rates = model_config(size), fleet_rates(tiers)
        parts = " + ".join(f"{count}×{rate:g} (K={cut(config, rate).blocks})" for count, rate in tiers)
        print(f"{name}: {size}, {config.depth} blocks, {parts}; {rounds} rounds, devices per round")
        for schedule in schedules:
            coverage = coverage_table(config, rates, schedule=schedule, rounds=rounds)
            print(f" {schedule}: N* = {coverage.minimum}\n{coverage.table()}")
        together = coverage_table(config, rates, rounds=rounds, offsets=[0] * len(rates))
        print(f" rolling without offsets: N* = {together.minimum}, {together.uncovered} rounds leave a block out\n")


if __name__ == "__main__":
    main()
