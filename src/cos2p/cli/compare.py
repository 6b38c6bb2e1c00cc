"""`cos2p compare`: methods at equal budget, over matched seeds."""

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

if TYPE_CHECKING:
    from collections.abc import Callable

    from cos2p.studies.cell_outcome import Execute
    from cos2p.studies.report import Report


def compare(
    ctx: typer.Context,
    recipe: RecipeName,
    methods: Annotated[str, typer.Option(help="all, or names with commas.")] = "all",
    seeds: Seeds = "0,1,2",
    out: Out = None,
    updates: Updates = None,
    reference: Annotated[str, typer.Option(help="The method that differences are taken to.")] = "cos2p",
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
    """Compare methods at equal budget, equal data and an equal number of client updates.

    cos2p compare fashion-mini --methods cos2p,fedrolex,ramfed --tune --jobs 2 --out runs/fashion
    """
    from cos2p.methods import method_class
    from cos2p.studies.compare import Comparison, choose_methods
    from cos2p.studies.compare import compare as run_comparison
    from cos2p.studies.folder import write_tuning
    from cos2p.studies.grid import Base

    folder = out or default_folder("compare", recipe)
    tuning = Tuning(tune, lrs, tune_seed, tune_updates or (), tune_finalists)
    method_class(reference)
    given = {
        "methods": methods,
        "seeds": seeds,
        "updates": updates,
        "reference": None if reference == "cos2p" else reference,
        **tuning.given(),
    }
    plan = Comparison(
        base=Base(recipe, tuple(changes or ()), updates),
        methods=choose_methods(methods),
        seeds=parse_seeds(seeds),
        command=command_line("compare", recipe, given, changes or ()),
        reference=reference,
        search=tuning.search(),
    )

    def drive(execute: Execute, write: Callable[[Report], None]) -> Report:
        return run_comparison(plan, execute, write, lambda record: write_tuning(record, folder))

    conduct(
        "compare",
        folder,
        drive,
        OutputMode.of(ctx, quiet, verbose, json),
        jobs,
        retry,
        engine_settings(engine, address),
    )
