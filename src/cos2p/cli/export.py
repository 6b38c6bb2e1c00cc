"""`cos2p export`: a run's model, or a device's own, for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cos2p.cli.output import Json, OutputMode, Quiet, print_json
from cos2p.cli.predict import DeviceOption, ExitOption, Model


def export(
    ctx: typer.Context,
    model: Model,
    out: Annotated[Path, typer.Option("--out", "-o", help="A folder.")],
    exit: ExitOption = None,
    device: DeviceOption = "",
    form: Annotated[
        str, typer.Option("--format", metavar="hf|onnx|peft", help="Hugging Face, ONNX (cos2p[onnx]), or an adapter.")
    ] = "hf",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Write a trained model as a folder for other programs. `--exit best`: the exit that was best on validation data.

    cos2p export runs/demo -o digits --exit best
    """
    from cos2p.cli.spinner import busy
    from cos2p.inference.exporting import export as write
    from cos2p.inference.sources import exit_option, open_trained

    mode = OutputMode.of(ctx, quiet=quiet, json=json)
    with busy(mode, f"writing {out}"):
        trained = open_trained(model, exit_option(exit), device)
        written = write(trained, out, form, overwrite)
    if mode.json:
        print_json({"out": str(written), "format": form, "exit": trained.exit, "device": trained.device})
        return
    whose = f"the submodel of {trained.device}" if trained.device else "the server's model"
    typer.echo(f"{written}: {whose} with the exit behind block {trained.exit}, as {form}")
