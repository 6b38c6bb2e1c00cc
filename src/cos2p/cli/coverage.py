"""`cos2p coverage`: who would train which block, before anything is trained."""

from __future__ import annotations

from typing import Annotated

import typer

from cos2p.cli.recipes import Changes, Name
from cos2p.errors import ConfigError


def coverage(
    recipe: Name,
    changes: Changes = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to play; every device takes part in each.")] = 100,
) -> None:
    """Show how many devices train each block per round, and the fewest (N*).

    cos2p coverage e1 --set method.window.schedule=balanced
    """
    from cos2p.recipe import Recipe
    from cos2p.submodel.coverage import coverage_table

    chosen = Recipe.load(recipe, changes or ())
    window = chosen.method.get("window")
    if window is None:
        raise ConfigError(f"method {chosen.method['name']!r} has no rolling window; coverage is for Co-S²P")
    rates = []
    for number, group in enumerate(chosen.fleet.devices):
        if group.rate == "auto":
            raise ConfigError(
                f"fleet.devices.{number} has no rate; set it, for instance fleet.devices.{number}.rate=0.25"
            )
        rates += [group.rate] * group.count
    # Depth alone matters here, so any image the patches fit will do.
    config = chosen.model.config(image=chosen.model.patch or chosen.model.config().image)
    table = coverage_table(
        config,
        rates,
        window["ratio"],
        window["schedule"],
        rounds,
        first=0 if window["first"] == "auto" else window["first"],
    )
    typer.echo(
        f"{chosen.name}: {len(rates)} devices, {config.depth} blocks, schedule {window['schedule']}, "
        f"{rounds} rounds; devices per round\n{table.table()}\nN* = {table.minimum}"
        + (f"; {table.uncovered} rounds leave a block out" if table.uncovered else "")
        + "\nN* is the fewest devices that train any one block in any round. Here all of them take part in every round"
        "\nand nobody is late; in a run whose rounds close before all have answered, or with clients_per_round, it is "
        "lower."
    )
