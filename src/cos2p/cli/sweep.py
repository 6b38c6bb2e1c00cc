"""`cos2p sweep`: one setting, or two against each other, over several values."""

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
from cos2p.cli.voice import Json, OutputMode, Quiet, Verbose

if TYPE_CHECKING:
    from collections.abc import Callable

    from cos2p.studies.cell_outcome import Execute
    from cos2p.studies.report import Report


def sweep(
    ctx: typer.Context,
    recipe: RecipeName,
    over: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=VALUE,VALUE",
            help="An axis: mu, t_clk, lambda1, lambda2, ratio, lr, or the full path of a field. As often as needed.",
        ),
    ],
    seeds: Seeds = "0,1,2",
    out: Out = None,
    updates: Updates = None,
    method: Annotated[str | None, typer.Option(help="Another method than the recipe's.", show_default=False)] = None,
    changes: Changes = None,
    jobs: Jobs = 1,
    engine: Engine = None,
    address: Address = None,
    retry: Retry = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Vary one setting, or two against each other: a table and, for up to two, pictures.

    cos2p sweep fashion-mini --over mu=0.125,0.5,1 --over t_clk=0,10,60 --jobs 2 --out runs/sweep
    """
    from cos2p.studies.grid import Base
    from cos2p.studies.sweep import Sweep, parse_axes
    from cos2p.studies.sweep import sweep as run_sweep

    plan = Sweep(
        base=Base(recipe, tuple(changes or ()), updates),
        axes=parse_axes(over),
        seeds=parse_seeds(seeds),
        command=command_line(
            "sweep", recipe, {"over": list(over), "seeds": seeds, "updates": updates, "method": method}, changes or ()
        ),
        method=method,
    )

    def drive(execute: Execute, write: Callable[[Report], None]) -> Report:
        return run_sweep(plan, execute, write)

    folder = out or default_folder("sweep", recipe)
    conduct(
        "sweep", folder, drive, OutputMode.of(ctx, quiet, verbose, json), jobs, retry, engine_settings(engine, address)
    )
