"""`cos2p plan`: what every device would train in its memory, and how; nothing is trained."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from cos2p.cli.output import Json, OutputMode, Quiet, print_json
from cos2p.cli.recipes import Changes, Name, OtherMethod
from cos2p.errors import BudgetError


def plan(
    ctx: typer.Context,
    recipe: Name,
    changes: Changes = None,
    method: OtherMethod = None,
    memory: Annotated[
        str, typer.Option("--memory", help="Plan every device for each of these instead: 60MB,120MB,1GB.")
    ] = "",
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Show device by device (equal ones together) what would train, how the rest is held, bytes, seconds, and why.

    cos2p plan minilm-trec --memory 30MB,120MB
    """
    from cos2p.cli.spinner import busy
    from cos2p.recipe import Recipe
    from cos2p.runtime.rehearsal import rehearse
    from cos2p.studies.frontier import parse_memories
    from cos2p.terminal.recipe_plan import device_plan_words
    from cos2p.units import format_bytes

    mode = OutputMode.of(ctx, quiet=quiet, json=json)
    written, failed = [], False
    for given in parse_memories(memory) if memory else (0,):
        groups = len(Recipe.load(recipe, changes or (), method).fleet.devices)
        own = [f"fleet.devices.{n}.{field}" for n in range(groups) for field in (f"memory={given}", "rate=auto")]
        chosen = Recipe.load(recipe, [*(changes or ()), *(own if given else ())], method)
        words = f"{format_bytes(given)} for each device" if given else chosen.name
        try:
            with busy(mode, f"planning: {words}"):
                plans = rehearse(chosen).plans
        except BudgetError as error:
            if not given:
                raise
            failed = True
            written.append({"memory": given, "error": str(error)})
            if not mode.json:
                typer.echo(f"{words}\n  {error}")
            continue
        written += [{"devices": list(entry.devices), "samples": entry.samples, **_plain(entry.plan)} for entry in plans]
        if not mode.json:
            typer.echo("\n".join([words, *(f"  {line}" for line in device_plan_words(plans))]))
    if mode.json:
        print_json(written)
    if failed:
        raise typer.Exit(BudgetError.exit_code)


def _plain(found: object) -> dict[str, object]:
    """A `Plan` as JSON."""
    values = asdict(found)  # type: ignore[call-overload]
    return {**values, "memory_optimizations": values["memory_optimizations"].model_dump()}
