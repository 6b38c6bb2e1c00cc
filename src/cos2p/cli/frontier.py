"""`cos2p frontier`: accuracy against bytes per device, method by method."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from cos2p.cli.spinner import reading
from cos2p.cli.studies import TUNE_SEED, Rates, Study, Tune, TuneFinalists, TuneSeed, TuneUpdates, search_of, study_verb

BUDGETS = "30MB,60MB,120MB,240MB,480MB"


@study_verb
def frontier(
    study: Study,
    methods: Annotated[str, typer.Option(help="all, or names with commas.")] = "all",
    memory: Annotated[str, typer.Option(help="Bytes of every device, with commas.")] = BUDGETS,
    tune: Tune = False,
    lrs: Rates = "",
    tune_seed: TuneSeed = TUNE_SEED,
    tune_updates: TuneUpdates = None,
    tune_finalists: TuneFinalists = 0,
    equal_time: Annotated[
        bool, typer.Option("--equal-time", help="Run methods again, planned for the virtual time of the first one.")
    ] = False,
) -> None:
    """Compare methods at several byte budgets: each takes the largest rate, rank or group of blocks that fits.

    cos2p frontier minilm-banking77 --methods cos2p,fedlora,probe --memory 30MB,120MB --out runs/frontier
    """
    from cos2p.studies.compare import choose_methods
    from cos2p.studies.equal_time import read_rounds
    from cos2p.studies.frontier import find_places, parse_memories, run_twice
    from cos2p.studies.frontier import frontier as frontier_of

    search = search_of(tune, lrs, tune_seed, tune_updates or (), tune_finalists)
    plan, names, memories = study.plan(), choose_methods(methods), parse_memories(memory)
    with reading(study.mode, "finding what fits:") as progress:
        places = find_places(plan.base, plan.seeds, names, memories, progress)
    plan = frontier_of(plan, names, memories, places, search)
    cells = study.folder / "cells"
    study.conduct(plan, partial(run_twice, history=lambda cell: read_rounds(cells / cell)) if equal_time else None)
