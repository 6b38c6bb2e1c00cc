"""`cos2p generate`: text from a trained language model."""

from __future__ import annotations

import json as json_format
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cos2p.cli.output import Json, OutputMode, Quiet, complain, print_json
from cos2p.cli.predict import DeviceOption, ExitOption, Model

if TYPE_CHECKING:
    from cos2p.inference.generating import Prompt, Written

TOGETHER = 8
"""Prompts of a file that are written at the same time."""


def generate(
    ctx: typer.Context,
    model: Model,
    prompt: Annotated[str | None, typer.Argument(help="A text to go on with; - reads stdin.")] = None,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", help="A file: a prompt a line, or JSON lines with prompt or messages.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="JSON lines to write the answers to.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="The prompt is a user's message in the chat template.")] = False,
    tokens: Annotated[int, typer.Option(min=1, help="At most so many new tokens.")] = 128,
    temperature: Annotated[float, typer.Option(min=0, help="0: the likeliest token; above: drawn, wilder.")] = 0.0,
    top_p: Annotated[float, typer.Option(min=1e-6, max=1, help="Draw from the likeliest tokens of this share.")] = 1.0,
    seed: Annotated[
        int, typer.Option(help="The same seed draws the same text; of a file, each prompt has the next.")
    ] = 0,
    exit: ExitOption = None,
    device: DeviceOption = "",
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Let a trained language model write. Ctrl-C stops it and keeps what is there.

    cos2p generate runs/stories-shakespeare-0 "ROMEO:" --temperature 0.8
    """
    from cos2p.errors import ConfigError
    from cos2p.inference.generating import check_prompts, read_prompts
    from cos2p.inference.generating import generate as write
    from cos2p.inference.sources import exit_option, open_trained
    from cos2p.models.decoding import Sampling

    mode = OutputMode.of(ctx, quiet=quiet, json=json)
    if (prompt is None) == (prompts is None):
        raise ConfigError("give one prompt, or a file of them with --prompts")
    if out is not None and out.exists():
        raise ConfigError(f"{out} exists; choose another file with -o")
    trained = open_trained(model, exit_option(exit), device)
    text = sys.stdin.read() if prompt == "-" else prompt or ""
    asked: list[Prompt] = read_prompts(prompts) if prompts is not None else [_asked(text, chat)]
    if trained.generates:
        check_prompts(trained, asked)
    live = prompts is None and not mode.json and out is None
    stopped = False
    for start in range(0, len(asked), TOGETHER):
        found: list[Written] = []
        try:
            pieces = write(
                trained,
                asked[start : start + TOGETHER],
                tokens,
                Sampling(temperature, top_p, seed + start),
                (lambda _, piece: typer.echo(piece, nl=False)) if live else lambda _, piece: None,
            )
            for latest in pieces:
                found = latest
        except KeyboardInterrupt:
            stopped = True
        if live:
            typer.echo()
        else:
            _notify([_line(own) for own in found], out)
        if stopped:
            complain("stopped", label="")
            raise typer.Exit(130)
        if out is not None and not mode.quiet:
            complain(f"{min(start + TOGETHER, len(asked))} of {len(asked)} written to {out}", label="")


def _asked(text: str, chat: bool) -> Prompt:
    return [{"role": "user", "content": text}] if chat else text


def _line(own: Written) -> dict[str, Any]:
    key = "prompt" if isinstance(own.prompt, str) else "messages"
    return {key: own.prompt, "text": own.text, "tokens": own.tokens, "ended": own.ended}


def _notify(lines: list[dict[str, Any]], out: Path | None) -> None:
    if out is None:
        for line in lines:
            print_json(line)
        return
    with out.open("a", encoding="utf-8") as file:
        file.writelines(json_format.dumps(line, ensure_ascii=False) + "\n" for line in lines)
