"""`cos2p frontier`: accuracy against bytes per device, method by method."""

from __future__ import annotations

from typing import Annotated

import typer

from cos2p.cli.spinner import reading
from cos2p.cli.studies import TUNE_SEED, Rates, Study, Tune, TuneFinalists, TuneSeed, TuneUpdates, Tuning, study_verb

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
    from cos2p.studies.folder import write_tuning
    from cos2p.studies.frontier import Frontier, find_places, parse_memories
    from cos2p.studies.frontier import frontier as run_frontier

    tuning = Tuning(tune, lrs, tune_seed, tune_updates or (), tune_finalists)
    plan = Frontier(
        base=study.base.checked(),
        methods=choose_methods(methods),
        memories=parse_memories(memory),
        seeds=study.seeds,
        command=study.command(methods=methods, memory=memory, **tuning.given(), **{"equal-time": equal_time}),
        search=tuning.search(),
        equal_time=equal_time,
    )
    with reading(study.mode, "finding what fits:") as progress:
        places = find_places(plan, progress)
    study.conduct(
        lambda execute, write: run_frontier(
            plan,
            places,
            execute,
            write,
            lambda cell: read_rounds(study.folder / "cells" / cell),
            lambda record: write_tuning(record, study.folder),
        )
    )
