"""`cos2p new`: a commented recipe for one's own data, model and devices, by options or by questions."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from cos2p.cli.output import OutputMode
from cos2p.errors import ConfigError, Cos2pError


def new(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(help="Where to write the recipe.")] = Path("recipe.toml"),
    data: Annotated[
        str | None, typer.Option(help="Folder of class folders, a csv, tsv, jsonl, parquet or txt file; digits: a toy.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Named size, or a Hugging Face folder.")] = None,
    devices: Annotated[
        str | None, typer.Option(help="Their number, or presets with numbers: raspberry-pi-4:4,laptop:2.")
    ] = None,
    memory: Annotated[str, typer.Option(help="Memory of each device for training, such as 60MB; empty: its own.")] = "",
    text_column: Annotated[str, typer.Option(help="Column of the texts of a table; empty: guessed by its name.")] = "",
    label_column: Annotated[str, typer.Option(help="Column of the labels; empty: guessed by its name.")] = "",
    tokenizer: Annotated[
        str, typer.Option(help="File or folder of a tokenizer; empty: the model's own, or bytes.")
    ] = "",
    image_size: Annotated[int, typer.Option(min=0, help="Edge of the images in pixels; 0: 32, or the model's.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="How long the run is.")] = 20,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace the file if there is one.")] = False,
) -> None:
    """Look at your data and model, write a commented recipe, and check it; options that are missing are asked for.

    cos2p new mine.toml --data questions.csv --model ./MiniLM --devices 8 --memory 60MB
    """
    from cos2p.cli.spinner import busy
    from cos2p.drafting import draft_recipe, usual_model
    from cos2p.runtime.rehearsal import rehearse
    from cos2p.terminal.recipe_plan import rehearsal_text

    if file.exists() and not force:
        raise ConfigError(f"{file} exists and was left alone; choose another name, or replace it by --force")
    data = _answer(data, "--data", "Data (folder of class folders, csv, jsonl, parquet, txt, or digits)", "digits")
    if model is None:
        model = _answer(model, "--model", "Model (named size or Hugging Face folder)", usual_model(data))
    devices = _answer(devices, "--devices", "Devices (a number, or preset:number, ...)", "8")
    columns = {"text_column": text_column, "label_column": label_column, "tokenizer": tokenizer}
    mode = OutputMode.of(ctx)
    with busy(mode, f"looking at {data}"):
        made = draft_recipe(
            data, model, devices, memory=memory, name=file.stem, file=shlex.quote(str(file)), image_size=image_size,
            rounds=rounds, **columns,
        )  # fmt: skip
        recipe = made.recipe
    file.write_text(made.text, encoding="utf-8")
    for fact in made.facts:
        typer.echo(fact, err=True)
    try:
        with busy(mode, "reading data and model, cutting the first tasks"):
            words = rehearsal_text(rehearse(recipe))
    except Cos2pError as error:
        typer.echo(f"{file} was written, but cannot run as it is: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
    typer.echo("\n".join(words), err=True)
    typer.echo(f"{file} is ready. Next:  cos2p run {shlex.quote(str(file))}", err=True)


def _answer(given: str | None, option: str, question: str, default: str) -> str:
    if given is not None:
        return given
    if not sys.stdin.isatty():
        raise ConfigError(f"{option} is missing, and there is nobody to ask; see cos2p new --help")
    return str(typer.prompt(question, default=default, err=True))
