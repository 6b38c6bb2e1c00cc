"""Memory and step time of physically cut submodels, against the full model, zero masks, and what was predicted.

    python -m benchmarks.submodel [--models vit-tiny vit-base] [--rates 0.25 ...] [--places bottom top] [--steps 3]

Every row runs in a process of its own. Times are processor seconds of one training step, the least of a few, so that
other programs on the machine disturb them little. `ideal` is the full model's figure times the share of its FLOPs that
the submodel trains: a 1.00 there means that cutting saves exactly what it cuts.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from rich.box import MARKDOWN
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.measure import Form, Measurement, measure
from cos2p import ModelConfig, SubmodelSpec, __version__, model_config
from cos2p.costs.fitting import make_spec
from cos2p.costs.flops import shape_flops
from cos2p.costs.ledger import peak
from cos2p.costs.shape import Shape, Workload
from cos2p.submodel.rates import cut

MODELS = ("vit-tiny", "vit-base")
RATES = (0.5625, 0.25, 0.0625, 0.0156)
PLACES = ("bottom", "middle", "top")
COLUMNS = (
    *("form", "R", "window", "predicted MB", "measured MB", "meas/pred", "mem/full", "mem/ideal"),
    *("CPU s", "wall s", "CPU/full", "CPU/ideal", "prefix pass s"),
)


@dataclass(frozen=True)
class Cell:
    """One row of the table: what is measured."""

    config: ModelConfig
    spec: SubmodelSpec
    workload: Workload
    rate: float = 1.0
    place: str = "-"
    form: Form = "cut"

    def measure(self, steps: int) -> Measurement:
        return measure(self.config, self.spec, self.workload, steps, form=self.form)

    def flop_share(self) -> float:
        """What the submodel's training takes of the full model's FLOPs; a frozen prefix has no part in it."""
        whole = SubmodelSpec.full(self.config)
        own, full = (Shape.of(self.config, spec) for spec in (self.spec, whole))
        return shape_flops(self.config, own, self.workload) / shape_flops(self.config, full, self.workload)

    def row(self, measured: Measurement, full: Measurement) -> list[str]:
        share = self.flop_share()
        memory, seconds = measured.peak_bytes / full.peak_bytes, measured.cpu_seconds / full.cpu_seconds
        predicted, ratio = "-", "-"
        if self.form == "cut":
            needed = peak(self.config, self.spec, self.workload).total
            predicted, ratio = f"{needed / 1e6:.1f}", f"{measured.peak_bytes / needed:.3f}"
        frozen = self.spec.frozen > 0
        return [
            *("full" if self.rate == 1.0 else self.form, f"{self.rate:g}", self.place),
            *(predicted, f"{measured.peak_bytes / 1e6:.1f}", ratio),
            *(f"{memory:.3f}", f"{memory / share:.2f}"),
            *(f"{measured.cpu_seconds:.3f}", f"{measured.seconds:.3f}", f"{seconds:.3f}", f"{seconds / share:.2f}"),
            f"{measured.prefix_seconds:.2f}" if frozen else "-",
        ]


def cells(config: ModelConfig, rates: Sequence[float], places: Sequence[str], workload: Workload) -> Iterator[Cell]:
    """The full model first: all ratios refer to it."""
    yield Cell(config, SubmodelSpec.full(config), workload)
    middle = rates[len(rates) // 2]
    yield Cell(config, make_spec(config, middle), workload, middle, "bottom", "zeros")
    for rate in rates:
        top = config.depth - cut(config, rate).blocks
        starts = {"bottom": 0, "middle": top // 2, "top": top}
        for place in places:
            yield Cell(config, make_spec(config, rate, starts[place]), workload, rate, place)


def table(name: str, plan: Sequence[Cell], steps: int, progress: Progress) -> Table:
    """Measure one model's cells, in order."""
    shown = Table(*COLUMNS, box=MARKDOWN, title=name, title_justify="left")
    job = progress.add_task(name, total=len(plan), now="")
    full: Measurement | None = None
    for cell in plan:
        progress.update(job, now=f"R={cell.rate:g} {cell.place} {cell.form}")
        measured = cell.measure(steps)
        full = full or measured
        shown.add_row(*cell.row(measured, full))
        progress.advance(job)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--places", nargs="+", choices=PLACES, default=PLACES)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--samples", type=int, default=16, help="size of the shard whose features are cached")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    workload = Workload(batch=arguments.batch, samples=arguments.samples, threads=arguments.threads)

    console = Console(width=200)
    console.print(
        f"cos2p {__version__}, torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"{workload.threads} thread(s) used; batch {workload.batch}, shard {workload.samples}, Adan, "
        f"least of {arguments.steps - 1} steps after the first\n"
    )
    columns = (
        *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()),
        TextColumn("{task.fields[now]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        for name in arguments.models:
            plan = list(cells(model_config(name), arguments.rates, arguments.places, workload))
            console.print(table(name, plan, arguments.steps, progress))


if __name__ == "__main__":
    main()
