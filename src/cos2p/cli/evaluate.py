"""`cos2p evaluate`: how good a trained model is on labelled data."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from cos2p.cli.output import Json, OutputMode, Quiet, console, print_json
from cos2p.cli.predict import DeviceOption, ExitOption, ImageColumn, Model, TextColumn

if TYPE_CHECKING:
    from rich.table import Table

    from cos2p.inference.evaluating import Evaluation

CONFUSION_CLASSES = 12
"""So many classes fit into a table side by side; of more, what is taken for what most often is listed."""


class Part(str, Enum):
    train = "train"
    validation = "validation"
    test = "test"


def evaluate(
    ctx: typer.Context,
    model: Model,
    data: Annotated[
        str,
        typer.Option(
            "--data",
            metavar="PATH",
            help="A folder of class folders, or a csv, tsv, jsonl, parquet or npz file; for a language model also txt.",
            show_default="the run's own",
        ),
    ] = "",
    split: Annotated[Part, typer.Option(help="Part of the run's own data, or of a folder with parts.")] = Part.test,
    exit: ExitOption = None,
    device: DeviceOption = "",
    text_column: TextColumn = "",
    image_column: ImageColumn = "",
    label_column: Annotated[str, typer.Option(help="Column of the labels.", show_default="the run's, or label")] = "",
    prompt: Annotated[
        str, typer.Option(help="Language models: what stands before an answer, {text} in it.", show_default="the run's")
    ] = "",
    answer_column: Annotated[str, typer.Option(help="Language models: column of free answers.")] = "",
    max_tokens: Annotated[
        int, typer.Option(min=0, help="Texts: tokens of a sequence.", show_default="the run's, or all positions")
    ] = 0,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out images that cannot be read.")] = False,
    batch: Annotated[int, typer.Option(min=1, help="Samples at a time.")] = 128,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Evaluate a trained model: accuracy, F1, every class, the confusion matrix; perplexity of a language model.

    cos2p evaluate runs/demo
    """
    from cos2p.cli.spinner import counting
    from cos2p.inference.evaluating import evaluate as score
    from cos2p.inference.evaluating import labelled
    from cos2p.inference.sources import exit_option, open_trained

    mode = OutputMode.of(ctx, quiet=quiet, json=json)
    trained = open_trained(model, exit_option(exit), device)
    columns: dict[str, str | int] = {
        "text_column": text_column, "image_column": image_column, "label_column": label_column,
        "prompt": prompt.replace("\\n", "\n"), "answer_column": answer_column, "max_tokens": max_tokens,
    }  # fmt: skip
    examples = labelled(trained, data, split.value, columns, skip_bad)
    with counting(mode, "evaluating", len(examples)) as done:
        found = score(trained, examples, lambda so_far, _: done(so_far), batch)
    if mode.json:
        print_json({"model": str(model), "exit": trained.exit, "data": data, **found.to_dict()})
        return
    screen = console()
    screen.print(_headline(found), highlight=False)
    if found.classes:
        screen.print(_by_class(found))
        few = len(found.classes) <= CONFUSION_CLASSES
        screen.print("class, and what it was taken for" if few else "most often confused", style="italic")
        screen.print(_confusion(found))


def _headline(found: Evaluation) -> str:
    from cos2p.terminal.formatting import count, percent

    if found.perplexity is not None:
        return (
            f"{count(found.samples, 'text')}: perplexity {found.perplexity:.4g}, loss {found.loss:.4f} nats a token, "
            f"{percent(found.accuracy)} of next tokens right"
            + (f"; generated answers right {percent(found.generated)}" if found.generated is not None else "")
            + (f", likeliest choice right {percent(found.likeliest)}" if found.likeliest is not None else "")
        )
    top5 = f", top-5 {percent(found.top5)}" if found.top5 is not None else ""
    return (
        f"{count(found.samples, 'sample')}: accuracy {percent(found.accuracy)} (chance {percent(found.chance)}, always "
        f"the most frequent class {percent(found.majority)}){top5}, F1 {percent(found.f1)}, loss {found.loss:.4f}"
    )


def _by_class(found: Evaluation) -> Table:
    from rich.table import Table
    from rich.text import Text

    from cos2p.terminal.formatting import percent, printable

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("class", overflow="fold")
    for name in ("samples", "precision", "recall", "F1"):
        table.add_column(name, justify="right", no_wrap=True)
    for score in found.classes:
        shares = (percent(value) for value in (score.precision, score.recall, score.f1))
        table.add_row(Text(printable(score.name)), f"{score.samples:,}", *shares)
    return table


def _confusion(found: Evaluation) -> Table:
    from rich.table import Table
    from rich.text import Text

    from cos2p.terminal.formatting import printable

    names = [printable(score.name) for score in found.classes]
    if len(names) <= CONFUSION_CLASSES:
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
        table.add_column("")
        for name in names:
            table.add_column(Text(name), justify="right")
        for name, row in zip(names, found.confusion, strict=True):
            table.add_row(Text(name), *(str(number) if number else "·" for number in row))
        return table
    table = Table("class", "taken for", "times", box=None, padding=(0, 2, 0, 0))
    wrong = [(n, i, j) for i, row in enumerate(found.confusion) for j, n in enumerate(row) if i != j and n]
    for number, i, j in sorted(wrong, reverse=True)[:10]:
        table.add_row(Text(names[i]), Text(names[j]), str(number))
    return table
