"""The output mode of a verb: quiet, verbose or JSON. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="The result only, no progress.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Every round, update and trouble.")]
Json = Annotated[bool, typer.Option("--json", help="For programs: JSON on stdout, one object per line.")]

_PIPE_WIDTH = 120
"""Columns where there is no terminal to ask; names of devices must not be cut in a log."""


@dataclass(frozen=True)
class OutputMode:
    quiet: bool = False
    verbose: bool = False
    json: bool = False

    def __or__(self, other: OutputMode) -> OutputMode:
        return OutputMode(self.quiet or other.quiet, self.verbose or other.verbose, self.json or other.json)

    @classmethod
    def of(cls, ctx: typer.Context, quiet: bool = False, verbose: bool = False, json: bool = False) -> OutputMode:
        """A verb's own options and those given before it: `cos2p -q run x` is `cos2p run x -q`."""
        before = ctx.find_object(OutputMode) or OutputMode()
        return before | OutputMode(quiet, verbose, json)


def console(stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else _PIPE_WIDTH)


def print_json(values: Mapping[str, Any] | list[Any]) -> None:
    typer.echo(json_format.dumps(values, sort_keys=True))


def complain(message: str, label: str = "error: ") -> None:
    """One line on stderr. What others wrote into it cannot break the line or the terminal."""
    from cos2p.terminal.formatting import printable

    listed = message.replace(":\n  ", ": ").replace("\n  ", "; ")  # our own lists, not others' words
    typer.echo(label + printable(listed), err=True)
