"""`cos2p recipes ls | show | cp | validate`: what can be run, and whether it can."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cos2p.cli.output import Json, OutputMode, Quiet, complain, print_json
from cos2p.errors import ConfigError, RecipeError
from cos2p.older_python import tomllib
from cos2p.recipes import recipe_text, shipped_recipes

app = typer.Typer(no_args_is_help=True, help="Recipes: complete named runs as commented TOML files.")


def complete_recipe(incomplete: str) -> list[str]:
    """For the shell: names of shipped recipes."""
    return [name for name in shipped_recipes() if name.startswith(incomplete)]


Name = Annotated[str, typer.Argument(help="A shipped recipe, or a TOML file.", autocompletion=complete_recipe)]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH.TO.FIELD=VALUE", help="Change a field; as often as needed."),
]

OtherMethod = Annotated[
    str | None,
    typer.Option("--method", help="Another method than the recipe's: cos2p-sync, fedavg ...", show_default=False),
]


ENGINES = ("local", "ray")

Engine = Annotated[
    str | None,
    typer.Option(
        help="local, or ray: workers on a cluster's machines (RAY_ADDRESS, else this machine's). Changes no figure.",
        show_default=False,
    ),
]


def engine_settings(engine: str | None) -> dict[str, str]:
    """Its fields of the `[run]` table."""
    if engine is not None and engine not in ENGINES:
        raise ConfigError(f"--engine {engine!r} is unknown; known: {', '.join(ENGINES)}")
    return {"engine": engine} if engine else {}


@app.command("ls")
def ls(ctx: typer.Context, json: Json = False) -> None:
    """List the recipes that come with cos2p."""
    found = {name: tomllib.loads(recipe_text(name)).get("description", "") for name in shipped_recipes()}
    if OutputMode.of(ctx, json=json).json:
        print_json([{"name": name, "description": description} for name, description in found.items()])
        return
    width = max(map(len, found))
    for name, description in found.items():
        typer.echo(f"{name:<{width}}  {description}")


@app.command("show")
def show(name: Name) -> None:
    """Print a recipe with its comments."""
    typer.echo(recipe_text(name), nl=False)


@app.command("cp")
def cp(
    name: Name,
    file: Annotated[Path | None, typer.Argument(help="Where to; NAME.toml here if left out.")] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace the file if there is one.")] = False,
) -> None:
    """Copy a recipe out, to change it."""
    text = recipe_text(name)
    file_name = f"{Path(name).name.removesuffix('.toml')}.toml"
    target = Path(file_name) if file is None else file / file_name if file.is_dir() else file
    try:
        with target.open("w" if force else "x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise ConfigError(
            f"{target} exists and was left alone; choose another name, or replace it by --force"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error.strerror}") from None
    typer.echo(f"{target}: run it with  cos2p run {target}", err=True)


@app.command("validate")
def validate(
    ctx: typer.Context,
    file: Name,
    changes: Changes = None,
    method: OtherMethod = None,
    fields: Annotated[
        bool, typer.Option("--fields", help="The fields alone: read neither data nor checkpoint.")
    ] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Check a recipe: name every field that is wrong; read its data and checkpoint, cut the first tasks, and say what
    every device would train, in how much memory and time. Nothing is trained."""
    from cos2p.recipe import Recipe, recipe_problems, recipe_values
    from cos2p.terminal.recipe_plan import plan_text

    values = recipe_values(file, changes or (), method)
    wrong = recipe_problems(values)
    mode = OutputMode.of(ctx, quiet=quiet, json=json)
    words: list[str] = []
    if not wrong:
        recipe = Recipe.parse(values, file)
        words = plan_text(recipe)
        if not fields:
            from cos2p.cli.spinner import busy
            from cos2p.runtime.rehearsal import rehearse
            from cos2p.terminal.recipe_plan import rehearsal_text

            with busy(mode, "reading data and model, cutting the first tasks"):
                words += rehearsal_text(rehearse(recipe))
    if mode.json:
        print_json({"ok": not wrong, "problems": wrong, "plan": words})
    elif not wrong:
        typer.echo("\n".join(["ok", *words]))
    else:
        for line in wrong:
            complain(f"{file}: {line}")
    if wrong:
        raise typer.Exit(RecipeError.exit_code)
