"""`cos2p predict`: what a trained model says of images or texts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cos2p.cli.output import Json, OutputMode, Quiet, complain, console, print_json
from cos2p.errors import DataError

if TYPE_CHECKING:
    from cos2p.inference.predicting import Prediction

Model = Annotated[
    Path, typer.Argument(metavar="RUN|FOLDER|FILE", help="A run folder, a Hugging Face folder, or a device's file.")
]
ExitOption = Annotated[
    str | None, typer.Option("--exit", metavar="N|best", help="Answer at this depth.", show_default="the deepest")
]
DeviceOption = Annotated[str, typer.Option("--device", metavar="NAME", help="That device's own submodel.")]
TextColumn = Annotated[str, typer.Option(help="Column of the texts of a table.", show_default="the run's, or text")]
ImageColumn = Annotated[str, typer.Option(help="Column of the images of a table.", show_default="the run's, or image")]


def predict(
    ctx: typer.Context,
    model: Model,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(metavar="INPUT...", help="Images, text files (a line each), tables, folders; - reads stdin."),
    ] = None,
    text: Annotated[list[str] | None, typer.Option("--text", help="A text itself; as often as needed.")] = None,
    top: Annotated[int, typer.Option(min=1, help="So many labels for each input.")] = 1,
    exit: ExitOption = None,
    device: DeviceOption = "",
    text_column: TextColumn = "",
    image_column: ImageColumn = "",
    batch: Annotated[int, typer.Option(min=1, help="Inputs at a time.")] = 32,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Label images or texts with a trained model: labels with their probabilities.

    cos2p predict runs/demo digit.png
    """
    from cos2p.cli.spinner import counting
    from cos2p.inference.predicting import gather
    from cos2p.inference.predicting import predict as answers
    from cos2p.inference.sources import exit_option, open_trained

    mode = OutputMode.of(ctx, quiet=quiet, json=json)
    trained = open_trained(model, exit_option(exit), device)
    columns = {name: value for name, value in (("text_column", text_column), ("image_column", image_column)) if value}
    items = gather(inputs or (), text or (), trained.data.model_copy(update=columns), trained.is_text)
    bad, rows = 0, []
    with counting(mode, "predicting", len(items)) as done:
        for number, found in enumerate(answers(trained, items, top, batch), 1):
            bad += bool(found.error)
            if mode.json:
                print_json(_as_json(found, trained.answer_word.replace(" ", "_")))
            else:
                rows.append(found)
            done(number)
    if not mode.json:
        _print_table(rows, trained.answer_word)
    if bad:
        complain(f"{bad} of {len(items)} inputs could not be read")
        raise typer.Exit(DataError.exit_code)


def _as_json(found: Prediction, word: str) -> dict[str, object]:
    if found.error:
        return {"input": found.name, "error": found.error}
    label, probability = found.answers[0]
    top = [{word: name, "probability": share} for name, share in found.answers]
    return {"input": found.name, word: label, "probability": probability, "top": top}


def _print_table(rows: list[Prediction], word: str) -> None:
    from rich.table import Table
    from rich.text import Text

    from cos2p.terminal.formatting import percent, printable

    table = Table("input", word, box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.columns[0].overflow = table.columns[1].overflow = "fold"
    for found in rows:
        words = [f"{printable(label)} {percent(share)}" for label, share in found.answers]
        said = f"cannot be read ({printable(found.error)})" if found.error else ", ".join(words)
        table.add_row(Text(printable(found.name)), Text(said))
    console().print(table)
