"""The app: its verbs, what holds for all of them, and how errors end."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cos2p.cli import (
    ablate,
    attack,
    compare,
    coverage,
    evaluate,
    export,
    fleet,
    frontier,
    generate,
    new,
    plan,
    predict,
    profile,
    recipes,
    report,
    run,
    sweep,
    watch,
)
from cos2p.cli.output import Json, OutputMode, Quiet, Verbose, complain
from cos2p.errors import Cos2pError

EXIT_CODES = """Exit codes: 0 done · 1 other errors, or runs of a study failed · 2 wrong option, recipe or field ·
3 impossible submodel · 4 does not fit the memory · 5 model checkpoint · 6 data missing or impossible · 7 run folder ·
8 training failed (loss not finite) · 9 update refused · 10 an optional package is missing ·
11 a device's owner does not allow it · 70 a defect of cos2p ·
130 stopped by Ctrl-C; go on with --resume, a study with the same command."""


class Verbs(TyperGroup):
    """Turns a user's mistake into one clear line and an exit code, whichever verb it happened in."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Cos2pError as error:
            complain(str(error))
            raise typer.Exit(error.exit_code) from None
        except RecursionError:
            complain("what is to be read is nested too deep: a file, or an option")
            raise typer.Exit(2) from None
        except (RuntimeError, MemoryError) as error:
            if not isinstance(error, MemoryError) and "can't allocate memory" not in str(error):
                raise
            complain("this needs more memory than the machine has; take a smaller model, fewer devices or less data")
            raise typer.Exit(4) from None
        except KeyboardInterrupt:
            complain("stopped", label="")
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)


def _version(wanted: bool) -> None:
    if wanted:
        from cos2p import __version__

        typer.echo(f"cos2p {__version__}")
        raise typer.Exit


@app.callback()
def everywhere(
    ctx: typer.Context,
    quiet: Quiet = False,
    verbose: Verbose = False,
    json: Json = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Train one large transformer on many weak, unequal devices."""
    ctx.obj = OutputMode(quiet, verbose, json)


app.command("new", epilog=EXIT_CODES)(new.new)
app.command("run", epilog=EXIT_CODES)(run.run)
app.command("compare", epilog=EXIT_CODES)(compare.compare)
app.command("ablate", epilog=EXIT_CODES)(ablate.ablate)
app.command("sweep", epilog=EXIT_CODES)(sweep.sweep)
app.command("predict", epilog=EXIT_CODES)(predict.predict)
app.command("generate", epilog=EXIT_CODES)(generate.generate)
app.command("evaluate", epilog=EXIT_CODES)(evaluate.evaluate)
app.command("export", epilog=EXIT_CODES)(export.export)
app.command("attack", epilog=EXIT_CODES)(attack.attack)
app.command("frontier", epilog=EXIT_CODES)(frontier.frontier)
app.command("watch", epilog=EXIT_CODES)(watch.watch)
app.command("report", epilog=EXIT_CODES)(report.report)
app.command("profile", epilog=EXIT_CODES)(profile.profile)
app.command("plan", epilog=EXIT_CODES)(plan.plan)
app.command("coverage", epilog=EXIT_CODES)(coverage.coverage)
app.add_typer(recipes.app, name="recipes")
app.add_typer(fleet.app, name="fleet")
