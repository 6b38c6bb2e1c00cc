"""`cos2p attack`: lying devices against a recipe, with several defences."""

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


def attack(
    ctx: typer.Context,
    recipe: RecipeName,
    attacks: Annotated[
        str,
        typer.Option(help="all, or some of: flip, scale, noise, constant, little, zero; honest runs come along."),
    ] = "flip,scale,noise,constant",
    defences: Annotated[
        str, typer.Option(help="all, or some of: none, default, bound, standing, median, trimmed, geometric.")
    ] = "none,default,standing",
    liars: Annotated[int, typer.Option(min=1, help="How many devices lie: the last ones of the recipe's fleet.")] = 1,
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
    """Let devices of a simulated fleet lie, and see what each defence is worth.

    cos2p attack quickstart --updates 150 --attacks flip,noise --defences none,standing --out runs/attack
    """
    from cos2p.studies.attack import ATTACKS, DEFENCES, Attacks, chosen
    from cos2p.studies.attack import attack as run_attacks
    from cos2p.studies.grid import Base

    given = {"attacks": attacks, "defences": defences, "liars": liars, "seeds": seeds, "updates": updates}
    plan = Attacks(
        base=Base(recipe, tuple(changes or ()), updates),
        attacks=chosen("--attacks", attacks, ATTACKS),
        defences=chosen("--defences", defences, tuple(DEFENCES)),
        seeds=parse_seeds(seeds),
        command=command_line("attack", recipe, given, changes or ()),
        liars=liars,
    )

    def drive(execute: Execute, write: Callable[[Report], None]) -> Report:
        return run_attacks(plan, execute, write)

    folder = out or default_folder("attack", recipe)
    voice = OutputMode.of(ctx, quiet, verbose, json)
    conduct("attack", folder, drive, voice, jobs, retry, engine_settings(engine, address))
