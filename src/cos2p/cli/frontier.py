"""`cos2p frontier`: accuracy against bytes per device, method by method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cos2p.cli.engine import Address, Engine, engine_settings
from cos2p.cli.studies import (
    Changes,
    Jobs,
    Out,
    RecipeName,
    Retry,
    Seeds,
    Updates,
    command_line,
    conduct,
    default_folder,
    parse_seeds,
)
from cos2p.cli.tuning import TUNE_SEED, Rates, Tune, TuneFinalists, TuneSeed, TuneUpdates, Tuning
from cos2p.cli.voice import Json, OutputMode, Quiet, Verbose
from cos2p.cli.waiting import reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from cos2p.studies.cell_outcome import Execute
    from cos2p.studies.report import Report

BUDGETS = "30MB,60MB,120MB,240MB,480MB"


def frontier(
    ctx: typer.Context,
    recipe: RecipeName,
    methods: Annotated[str, typer.Option(help="all, or names with commas.")] = "all",
    memory: Annotated[str, typer.Option(help="Bytes of every device, with commas.")] = BUDGETS,
    seeds: Seeds = "0,1,2",
    out: Out = None,
    updates: Updates = None,
    tune: Tune = False,
    lrs: Rates = "",
    tune_seed: TuneSeed = TUNE_SEED,
    tune_updates: TuneUpdates = None,
    tune_finalists: TuneFinalists = 0,
    changes: Changes = None,
    jobs: Jobs = 1,
    engine: Engine = None,
    address: Address = None,
    retry: Retry = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Compare methods at several byte budgets: each takes the largest rate, rank or group of blocks that fits.

    cos2p frontier minilm-banking77 --methods cos2p,fedlora,probe --memory 30MB,120MB --out runs/frontier
    """
    from cos2p.studies.compare import choose_methods
    from cos2p.studies.folder import write_tuning
    from cos2p.studies.frontier import Frontier, find_places, parse_memories
    from cos2p.studies.frontier import frontier as run_frontier
    from cos2p.studies.frontier_tables import read_history
    from cos2p.studies.grid import Base

    folder, voice = out or default_folder("frontier", recipe), OutputMode.of(ctx, quiet, verbose, json)
    tuning = Tuning(tune, lrs, tune_seed, tune_updates or (), tune_finalists)
    given = {"methods": methods, "memory": memory, "seeds": seeds, "updates": updates, **tuning.given()}
    plan = Frontier(
        base=Base(recipe, tuple(changes or ()), updates).checked(),
        methods=choose_methods(methods),
        memories=parse_memories(memory),
        seeds=parse_seeds(seeds),
        command=command_line("frontier", recipe, given, changes or ()),
        search=tuning.search(),
    )

    with reading(voice, "finding what fits:") as told:
        places = find_places(plan, told)

    def drive(execute: Execute, write: Callable[[Report], None]) -> Report:
        return run_frontier(
            plan,
            places,
            execute,
            write,
            lambda cell: read_history(folder / "cells" / cell),
            lambda record: write_tuning(record, folder),
        )

    conduct("frontier", folder, drive, voice, jobs, retry, engine_settings(engine, address))
