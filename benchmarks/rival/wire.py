"""Bytes both ways of a run against FedRolex's at the same rate, by how what trains travels.

    python -m benchmarks.rival.wire [--recipes e1 e2 e3] [--form paper cheap]

Counted, not measured: the tensors of every task of a run of 120 rounds, 20 of them with masks, at every window
position. Two ratios for each: over FedRolex as published, in 32 bits each way, and over FedRolex on the same wire.
The first says what a fleet that ran FedRolex would save; the second what of that is the method.
"""

from __future__ import annotations

import argparse

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from benchmarks.rival.forms import FORMS, MASK_ROUNDS, RECIPES, RIVAL, ROUNDS
from benchmarks.rival.plans import Tier, plan, positions, tiers

WIRES = {
    "32": (),
    "16": ("training.wire.down=float16", "training.wire.up=float16"),
    "16 down, 8 up": ("training.wire.down=float16", "training.wire.up=int8"),
    "8": ("training.wire.down=int8", "training.wire.up=int8"),
}
"""Bits of what trains, as changes to a recipe."""


def bytes_of_a_task(tier: Tier, form: str, wire: str) -> float:
    """Down and up, the mean over a run; of the rival one task is like the other."""
    if form == RIVAL:
        rivals = plan(tier, RIVAL, False, 0, WIRES[wire])
        return rivals.down + rivals.up
    total = 0.0
    for trains_masks, rounds in ((True, MASK_ROUNDS), (False, ROUNDS - MASK_ROUNDS)):
        for start, share in positions(tier, form).items():
            found = plan(tier, form, trains_masks, start, WIRES[wire])
            total += rounds / ROUNDS * share * (found.down + found.up)
    return total


def row(tier: Tier, form: str) -> list[str]:
    published = bytes_of_a_task(tier, RIVAL, "32")
    cells = [tier.recipe, f"{tier.rate:.4g}", form]
    for wire in WIRES:
        ours = bytes_of_a_task(tier, form, wire)
        cells.append(f"{ours / published:.2f} ({ours / bytes_of_a_task(tier, RIVAL, wire):.2f})")
    return cells


def fleet_row(found: list[Tier], form: str) -> list[str]:
    """Sums over the devices of a fleet."""

    def total(name: str, wire: str) -> float:
        return sum(len(tier.clients) * bytes_of_a_task(tier, name, wire) for tier in found)

    cells = [found[0].recipe, "fleet", form]
    for wire in WIRES:
        ours = total(form, wire)
        cells.append(f"{ours / total(RIVAL, '32'):.2f} ({ours / total(RIVAL, wire):.2f})")
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--form", nargs="+", choices=tuple(FORMS), default=["paper", "cheap"])
    chosen = parser.parse_args()
    title = "bytes both ways over FedRolex's in 32 bits (over FedRolex's on the same wire)"
    shown = Table("recipe", "R", "form", *WIRES, box=MARKDOWN, title=title, title_justify="left")
    for recipe in chosen.recipes:
        found = list(tiers(recipe))
        for form in chosen.form:
            for tier in found:
                shown.add_row(*row(tier, form))
            shown.add_row(*fleet_row(found, form))
    Console(width=150).print(shown)


if __name__ == "__main__":
    main()
