"""Whole tasks of Co-S²P against FedRolex's at the same rate: processor seconds, peak memory, bytes each way.

    python -m benchmarks.rival [--recipes e1 e2 e3] [--form paper cheap] [--samples 2] [--cells runs/rival.json]

For every rate of the recipes one task of FedRolex and, in each form, Co-S²P's with masks to train and without, with the
window at the bottom and in the middle of all other positions: each in a fresh process, as a device does it (prefix
pass, mask phase, E = Ê = 5 epochs, update), on noise of the recipe's image size. Every task is a cell of the file; the
same command goes on where it was stopped, and shows what is known.

How a few samples stand for a shard: seconds of every phase are in proportion to the samples (the optimiser's steps are
not: with batches of 2 they weigh more than with the recipes' own, for both methods alike). Positions between the
measured ones take their seconds by the ratio of their FLOPs. Bytes of all positions are those of the tensors; the files
that were measured are larger by their header. Peaks are measured at the small batch, and predicted by the ledger at the
recipe's own; measured over predicted says what that is worth. A run has 120 rounds, of which 20 train masks.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from benchmarks.rival import cells as measuring
from benchmarks.rival.forms import FORMS, RECIPES, RIVAL
from benchmarks.rival.plans import Tier, tiers
from benchmarks.rival.ratios import Cost, modelled, modelled_run, of_kind, of_run, rival

COLUMNS = (
    *("recipe", "R", "form", "s, masks", "s, later", "s, run"),
    *("down", "both ways", "peak, measured", "peak, ledger"),
)


def row(cells: measuring.Cells, tier: Tier, form: str) -> list[str] | None:
    theirs, run = rival(cells, tier), of_run(cells, tier, form)
    first, later = (of_kind(cells, tier, form, masks) for masks in (True, False))
    if theirs is None or run is None or first is None or later is None:
        return None
    return [
        *(tier.recipe, f"{tier.rate:.4g}", form),
        *(f"{cost.seconds / theirs.seconds:.2f}" for cost in (first, later, run)),
        *(f"{run.down / theirs.down:.2f}", f"{run.both_ways / theirs.both_ways:.2f}"),
        *(f"{run.peak / theirs.peak:.2f}", f"{run.full_peak / theirs.full_peak:.2f}"),
    ]


def fleet_row(cells: measuring.Cells, found: list[Tier], form: str) -> list[str] | None:
    """Sums over the devices of a fleet; of peaks the mean of the ratios."""
    pairs: list[tuple[int, Cost, Cost]] = []
    for tier in found:
        ours, theirs = of_run(cells, tier, form), rival(cells, tier)
        if ours is None or theirs is None:
            return None
        pairs.append((len(tier.clients), ours, theirs))

    def total(field: str) -> str:
        ours, theirs = (sum(pair[0] * float(getattr(pair[i], field)) for pair in pairs) for i in (1, 2))
        return f"{ours / theirs:.2f}"

    def average(field: str) -> str:
        weighed = sum(n * getattr(ours, field) / getattr(theirs, field) for n, ours, theirs in pairs)
        return f"{weighed / sum(n for n, _, _ in pairs):.2f}"

    return [
        *(found[0].recipe, "fleet", form, "", "", total("seconds"), total("down"), total("both_ways")),
        *(average("peak"), average("full_peak")),
    ]


def ratio_table(cells: measuring.Cells, recipes: list[str], forms: list[str]) -> Table:
    shown = Table(*COLUMNS, box=MARKDOWN, title="Co-S²P over FedRolex at the same rate", title_justify="left")
    for recipe in recipes:
        found = list(tiers(recipe))
        for form in forms:
            rows = [row(cells, tier, form) for tier in found] + [fleet_row(cells, found, form)]
            for texts in rows:
                if texts is not None:
                    shown.add_row(*texts)
    return shown


def model_table(recipes: list[str], forms: list[str]) -> Table:
    """The same ratios by the cost model alone, at the recipes' own batches: what was known before anything ran."""
    shown = Table(
        *("recipe", "R", "form", "FLOPs, masks", "FLOPs, later", "FLOPs, run", "of them masks"),
        *("down", "up", "both ways", "peak"),
        box=MARKDOWN, title="By the cost model", title_justify="left",
    )  # fmt: skip
    for tier in (tier for recipe in recipes for tier in tiers(recipe)):
        theirs = modelled(tier, RIVAL, False)
        for form in forms:
            run = modelled_run(tier, form)
            first, later = (modelled(tier, form, trains_masks) for trains_masks in (True, False))
            shown.add_row(
                *(tier.recipe, f"{tier.rate:.4g}", form),
                *(f"{cost.flops / theirs.flops:.2f}" for cost in (first, later, run)),
                *(f"{run.mask_flops / run.flops:.0%}", f"{run.down / theirs.down:.2f}", f"{run.up / theirs.up:.2f}"),
                *(f"{run.both_ways / theirs.both_ways:.2f}", f"{run.full_peak / theirs.full_peak:.2f}"),
            )
    return shown


def measured_table(cells: measuring.Cells, recipes: list[str], forms: list[str]) -> Table:
    shown = Table(
        *("task", "CPU s", "peak MB", "meas/pred", "down MB", "up MB"),
        box=MARKDOWN, title="Tasks as measured", title_justify="left",
    )  # fmt: skip
    for recipe in recipes:
        for item in dict.fromkeys(measuring.wanted(recipe, forms)):
            cell = cells[item]
            if cell is None:
                continue
            kind = "masks" if item.trains_masks else "later"
            name = item.form if item.form not in FORMS else f"{item.form}, {kind}, from block {item.start}"
            shown.add_row(
                *(f"{item.tier.title} {name}", f"{cell.cpu_seconds:.1f}", cell.failure or f"{cell.peak / 1e6:.0f}"),
                *(f"{cell.peak / cell.predicted:.2f}", f"{cell.down / 1e6:.1f}", f"{cell.up / 1e6:.1f}"),
            )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--form", nargs="+", choices=tuple(FORMS), default=list(FORMS))
    parser.add_argument("--samples", type=int, default=2, help="of a device; its batch is as many")
    parser.add_argument("--cells", type=Path, default=Path("runs/rival.json"), help="what is known; goes on from it")
    parser.add_argument("--show", action="store_true", help="measure nothing, show what is known")
    chosen = parser.parse_args()
    cells, console = measuring.Cells(chosen.cells, chosen.samples), Console(width=150)
    if not chosen.show:
        with tempfile.TemporaryDirectory() as folder:
            for recipe in chosen.recipes:
                measuring.run(cells, recipe, chosen.form, Path(folder) / recipe)
    console.print(model_table(chosen.recipes, chosen.form))
    console.print(measured_table(cells, chosen.recipes, chosen.form))
    console.print(ratio_table(cells, chosen.recipes, chosen.form))


if __name__ == "__main__":
    main()
