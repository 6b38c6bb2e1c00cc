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
    parse_lengths,
    parse_numbers,
    parse_seeds,
)
from cos2p.cli.voice import Json, OutputMode, Quiet, Verbose
from cos2p.errors import ConfigError

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
    tune: Annotated[
        bool, typer.Option("--tune", help="Search a learning rate for each method first, on validation data only.")
    ] = False,
    lrs: Annotated[
        str, typer.Option(help="Rates to try, with commas.", show_default="¼, ½, 1, 2 and 4 times the recipe's")
    ] = "",
    tune_seed: Annotated[int, typer.Option(min=0, help="Seed of the search; not one of --seeds.")] = 1000,
    tune_updates: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[METHOD:]N",
            help="Client updates of a trial, of all methods or of one.",
            show_default="as many as in a run",
        ),
    ] = None,
    tune_finalists: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Where trials are shorter than the runs: the best N are tried again at full length.",
        ),
    ] = 0,
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
    from cos2p.studies.tuning import Search

    folder = out or default_folder("compare", recipe)
    if not tune and (lrs or tune_updates or tune_finalists):
        raise ConfigError("--lrs, --tune-updates and --tune-finalists say how rates are searched; add --tune")
    length, length_of = parse_lengths("--tune-updates", tune_updates or ())
    method_class(reference)
    given = {
        "methods": methods,
        "seeds": seeds,
        "updates": updates,
        "reference": None if reference == "cos2p" else reference,
        "tune": tune,
        "lrs": lrs if tune else None,
        "tune-seed": tune_seed if tune and tune_seed != 1000 else None,
        "tune-updates": tune_updates if tune else None,
        "tune-finalists": tune_finalists if tune and tune_finalists else None,
    }
    plan = Comparison(
        base=Base(recipe, tuple(changes or ()), updates),
        methods=choose_methods(methods),
        seeds=parse_seeds(seeds),
        command=command_line("compare", recipe, given, changes or ()),
        reference=reference,
        search=Search(parse_numbers("--lrs", lrs), tune_seed, length, length_of, tune_finalists) if tune else None,
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
