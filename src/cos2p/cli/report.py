"""`cos2p report`: runs and studies frozen into one HTML file that needs nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cos2p.cli.output import Json, OutputMode, Quiet, Verbose, print_json


def report(
    ctx: typer.Context,
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, study folders, also of a fleet.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write; an earlier one is replaced.")] = Path(
        "report.html"
    ),
    quiet: Quiet = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Freeze runs and studies into a single HTML file to keep or to mail.

    cos2p report runs/quickstart-0 -o report.html
    """
    from cos2p.cli.spinner import reading

    mode = OutputMode.of(ctx, quiet, verbose, json)
    with reading(mode) as progress:
        from cos2p.view.frozen import write_report

        size = write_report(runs, out, progress)
    if mode.json:
        print_json({"kind": "report", "out": str(out), "bytes": size, "runs": [str(run) for run in runs]})
        return
    from cos2p.units import format_bytes

    typer.echo(f"{out} ({format_bytes(size)})")
