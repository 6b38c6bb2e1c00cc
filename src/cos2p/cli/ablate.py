"""`cos2p ablate`: what each part of Co-S²P is worth."""

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


def ablate(
    ctx: typer.Context,
    recipe: RecipeName,
    rows: Annotated[str, typer.Option(help="paper, ours, all, or names of rows with commas.")] = "all",
    seeds: Seeds = "0,1,2",
    out: Out = None,
    updates: Updates = None,
    changes: Changes = None,
    jobs: Jobs = 1,
    engine: Engine = None,
    address: Address = None,
    retry: Retry = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Take Co-S²P apart: the paper's ablation table and rows of our own.

    cos2p ablate fashion-mini --rows paper --jobs 2 --out runs/ablation
    """
    from cos2p.studies.ablation import Ablation, choose_rows
    from cos2p.studies.ablation import ablate as run_ablation
    from cos2p.studies.grid import Base

    given = {"rows": rows, "seeds": seeds, "updates": updates}
    plan = Ablation(
        base=Base(recipe, tuple(changes or ()), updates),
        rows=choose_rows(rows),
        seeds=parse_seeds(seeds),
        command=command_line("ablate", recipe, given, changes or ()),
    )

    def drive(execute: Execute, write: Callable[[Report], None]) -> Report:
        return run_ablation(plan, execute, write)

    folder = out or default_folder("ablate", recipe)
    conduct(
        "ablate", folder, drive, OutputMode.of(ctx, quiet, verbose, json), jobs, retry, engine_settings(engine, address)
    )
