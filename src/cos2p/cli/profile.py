"""`cos2p profile`: what this device can train of a recipe, and how fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cos2p.cli.output import Json, OutputMode, Quiet, print_json
from cos2p.cli.recipes import Changes, Name, OtherMethod


def profile(
    ctx: typer.Context,
    recipe: Name,
    changes: Changes = None,
    method: OtherMethod = None,
    memory: Annotated[
        str | None, typer.Option(help="Bytes training may take, such as 2GiB.", show_default="4/5 of what is free")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Training samples of the task.")] = 64,
    threads: Annotated[int, typer.Option(min=0, help="Of torch; 0: all cores.")] = 0,
    accelerator: Annotated[
        str, typer.Option(help="What to measure: auto, the GPU if there is one, cpu, cuda, cuda:1 or mps.")
    ] = "auto",
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the figures go.")] = Path("device.toml"),
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Train one task of a recipe on this device, as a fleet's device does, and measure its memory and speed.

    cos2p profile demo --memory 12MB
    """
    from cos2p.cli.spinner import busy
    from cos2p.fleet.device.profile import profile as measure
    from cos2p.fleet.device.profile import write_device
    from cos2p.terminal.formatting import duration
    from cos2p.units import format_bytes, parse_bytes

    mode, limit = OutputMode.of(ctx, quiet=quiet, json=json), parse_bytes(memory) if memory else 0
    with busy(mode, "training one task"):
        found = measure(
            recipe, changes or (), method, memory=limit, samples=samples, threads=threads, accelerator=accelerator
        )
    write_device(found, out)
    if mode.json:
        print_json({**vars(found), "out": str(out)})
        return
    typer.echo(
        f"{found.trains} on {found.accelerator}\n"
        f"  memory {format_bytes(found.peak)} of {format_bytes(found.memory)}, "
        f"predicted {format_bytes(found.predicted)}\n"
        f"  speed {found.flops / 1e9:.1f} GFLOP/s: {duration(found.seconds)} for {found.samples} samples\n"
        f"Figures: {out}; cos2p fleet join KIT --device {out} brings them along"
    )
