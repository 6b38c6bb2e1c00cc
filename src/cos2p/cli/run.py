"""`cos2p run`: simulate a recipe into a run folder, with progress and a summary."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cos2p.cli.output import Json, OutputMode, Quiet, Verbose, complain, console, print_json
from cos2p.cli.recipes import Changes, Engine, OtherMethod, complete_recipe, engine_settings
from cos2p.errors import ConfigError, Interrupted
from cos2p.older_python import add_note

if TYPE_CHECKING:
    from cos2p.recipe import Recipe
    from cos2p.tracking.event_kinds import Event
    from cos2p.tracking.events import Listener


def run(
    ctx: typer.Context,
    recipe: Annotated[
        str | None,
        typer.Argument(help="A shipped recipe, or a TOML file.", autocompletion=complete_recipe, show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Run folder.", show_default="runs/RECIPE-SEED")
    ] = None,
    changes: Changes = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same run.", show_default=False)] = None,
    method: OtherMethod = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Worker processes, 0 for one per core. Never changes a result.", show_default=False),
    ] = None,
    engine: Engine = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out; RECIPE may be left out.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete the earlier run in --out.")] = False,
    fleet: Annotated[
        Path | None,
        typer.Option(help="Admin kit of a real fleet to train on, instead of the simulated one.", show_default=False),
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write curves for TensorBoard into the run folder.")
    ] = False,
    mlflow: Annotated[
        str,
        typer.Option(metavar="URI", help="Write curves to MLflow: a server, or sqlite:///FILE.", show_default=False),
    ] = "",
    wandb: Annotated[
        str,
        typer.Option(metavar="PROJECT", help="Write curves to this Weights & Biases project.", show_default=False),
    ] = "",
    quiet: Quiet = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Train a recipe's model on its simulated fleet, or on a real one.

    cos2p run quickstart --set schedule.rounds=2
    """
    from cos2p.tracking.loggers import logging_metrics

    mode = OutputMode.of(ctx, quiet, verbose, json)
    if recipe is None and not (resume and out is not None):
        raise ConfigError("name a RECIPE (`cos2p recipes ls` lists them), or go on with a run by --resume --out DIR")
    given = {"seed": seed, "run.workers": workers, **{f"run.{n}": f'"{v}"' for n, v in engine_settings(engine).items()}}
    options = [f"{path}={value}" for path, value in given.items() if value is not None]
    chosen = _load(recipe, out, [*(changes or ()), *options], method)
    folder = out or default_folder(chosen, method)
    with (
        following_run(folder, mode, _again(folder, fleet)) as listener,
        logging_metrics(folder, tensorboard, mlflow, wandb) as feed,
    ):
        result = _train(chosen, folder, resume, overwrite, fleet, _both(listener, feed))
    finish(result, folder, mode)


def _load(name: str | None, out: Path | None, changes: list[str], method: str | None) -> Recipe:
    from cos2p.recipe import Recipe

    if name is not None:
        return Recipe.load(name, changes, method)
    assert out is not None
    stored = out / "recipe.toml"
    if not stored.is_file():
        raise ConfigError(f"there is no run to resume in {out} (no recipe.toml); name its RECIPE to begin one")
    return Recipe.load(stored, changes, method)


def default_folder(recipe: Recipe, method: str | None = None) -> Path:
    """runs/RECIPE-SEED; a method asked for by name gets a folder of its own."""
    parts = [recipe.name, *([method] if method else []), str(recipe.seed)]
    return Path("runs") / "-".join(parts)


def _train(
    recipe: Recipe, folder: Path, resume: bool, overwrite: bool, fleet: Path | None, listener: Listener | None
) -> dict[str, Any]:
    if fleet is None:
        from cos2p.runtime.simulation import run as simulate

        return simulate(recipe, folder, resume=resume, overwrite=overwrite, listener=listener)
    from cos2p.fleet.admin.follow import run_on_fleet

    return run_on_fleet(recipe, folder, fleet, resume=resume, overwrite=overwrite, listener=listener)


def _both(listener: Listener | None, feed: Listener | None) -> Listener | None:
    if listener is None or feed is None:
        return listener or feed

    def notify(event: Event) -> None:
        listener(event)
        feed(event)

    return notify


def _again(folder: Path, fleet: Path | None) -> str:
    return "cos2p run --resume --out " + shlex.quote(str(folder)) + (f" --fleet {fleet}" if fleet else "")


@contextmanager
def following_run(folder: Path, mode: OutputMode, again: str) -> Iterator[Listener | None]:
    """Progress while a run goes on. A run that is stopped ends with the command that goes on with it."""
    try:
        with _listening(mode) as listener:
            yield listener
    except (Interrupted, KeyboardInterrupt) as stop:
        where = str(stop).partition(";")[0] or "stopped"
        complain(f"{where}; go on with:  {again}", label="")
        raise typer.Exit(130) from None
    except Exception as error:
        add_note(error, f"run folder: {folder}")
        raise


def finish(result: dict[str, Any], folder: Path, mode: OutputMode) -> None:
    """Show what came out."""
    if mode.json:
        print_json({"kind": "result", "out": str(folder), **result})
        return
    from cos2p.terminal.summary import summary

    console().print(summary(result, folder))


@contextmanager
def _listening(mode: OutputMode) -> Iterator[Listener | None]:
    if mode.json:
        yield None if mode.quiet else _print_event
    elif mode.quiet:
        yield None
    else:
        from cos2p.terminal.following import following

        with following(console(stderr=True), mode.verbose) as listener:
            yield listener


def _print_event(event: Event) -> None:
    from cos2p.tracking.events import event_line

    typer.echo(event_line(event))
