"""The part that all studies have in common: options, how they run, how they end.

    @study_verb
    def ablate(study: Study, rows: Annotated[str, typer.Option()] = "all") -> None:

is a command with `rows` and every option of `_common`; what these said is in `study`.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cos2p.cli.output import Json, OutputMode, Quiet, Verbose, complain, console, print_json
from cos2p.cli.recipes import Engine, complete_recipe, engine_settings
from cos2p.cli.spinner import reading
from cos2p.errors import ConfigError, Interrupted

if TYPE_CHECKING:
    from cos2p.studies.grid import Execute
    from cos2p.studies.progress import StudyProgress
    from cos2p.studies.report import Report, StudyPlan, Write
    from cos2p.studies.tuning import Search

    Drive = Callable[[StudyPlan, Execute, Write], Report]

EXIT_FAILED_CELLS = 1

RecipeName = Annotated[
    str, typer.Argument(help="A shipped recipe, or a TOML file.", autocompletion=complete_recipe, show_default=False)
]
Seeds = Annotated[str, typer.Option(help="Seeds of every row: 0,1,2 or 0-4.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="The study's folder; started again, it goes on there.")]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, help="Cells at once, each on one core. Changes no figure.")]
Updates = Annotated[
    int | None, typer.Option(min=1, help="Client updates of every run.", show_default="the recipe's schedule.updates")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="[METHOD:]PATH=VALUE", help="Change a field, of all rows or of one method's."),
]
Keep = Annotated[
    str,
    typer.Option(help="Of runs that are over: all, or figures alone (no models, which may take hundreds of MB a run)."),
]
KEEPS = ("all", "figures")
Retry = Annotated[bool, typer.Option("--retry", help="Try failed cells again, also those that would fail again.")]


def parse_seeds(text: str) -> tuple[int, ...]:
    """
    >>> parse_seeds("0,3,5-7")
    (0, 3, 5, 6, 7)
    """
    seeds: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.strip().partition("-")
            seeds += range(int(first), int(last) + 1) if dash else [int(first)]
    except ValueError:
        seeds = []
    if not seeds:
        raise ConfigError(f"cannot read --seeds {text!r}; write 0,1,2 or 0-4")
    return tuple(seeds)


def parse_numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigError(f"cannot read {option} {text!r}; write numbers with commas") from None


def parse_lengths(option: str, texts: Sequence[str]) -> tuple[int | None, dict[str, int]]:
    """Numbers of updates: for all methods, and for single ones.

    >>> parse_lengths("--tune-updates", ["160", "fedavg-qvit:80"])
    (160, {'fedavg-qvit': 80})
    """
    lengths: dict[str, int] = {}
    for text in texts:
        method, _, number = text.rpartition(":")
        if not number.strip().isdecimal() or int(number) < 1:
            raise ConfigError(f"cannot read {option} {text!r}; write 160, or fedavg-qvit:80 for one method")
        lengths[method.strip()] = int(number)
    return lengths.pop("", None), lengths


NO_FIGURE = ("out", "jobs", "engine", "keep", "retry", "quiet", "verbose", "json")
"""Options that change no figure."""


def command_line(ctx: typer.Context) -> str:
    """The command that gives the same study: its options as they were given."""
    words = ["cos2p", str(ctx.info_name), str(ctx.params["recipe"])]
    for option in ctx.command.params:
        name, source = str(option.name), ctx.get_parameter_source(str(option.name))
        if name == "recipe" or name in NO_FIGURE or source is None or source.name != "COMMANDLINE":
            continue
        value = ctx.params[name]
        for entry in value if isinstance(value, list | tuple) else [value]:
            words += [option.opts[0]] if entry is True else [option.opts[0], str(entry)]
    return shlex.join(words)


@dataclass(frozen=True)
class Study:
    """The common options as they were given."""

    command: str
    verb: str
    recipe: str
    seeds: tuple[int, ...]
    updates: int | None
    changes: tuple[str, ...]
    folder: Path
    mode: OutputMode
    jobs: int
    retry: bool
    engine: Mapping[str, str]
    """Fields of the `[run]` table, for every cell (see `cli.recipes`)."""
    keep: str = "all"

    def plan(self) -> StudyPlan:
        """A plan without rows: what all studies have in common."""
        from cos2p.studies.grid import Base
        from cos2p.studies.report import StudyPlan

        return StudyPlan(Base(self.recipe, self.changes, self.updates).checked(), self.seeds, self.command)

    def conduct(self, plan: StudyPlan, drive: Drive | None = None) -> None:
        """Run the study into its folder, show how it goes, print what came out, and end with an honest exit code."""
        from cos2p.studies.folder import study_folder, write_report
        from cos2p.studies.report import run_study
        from cos2p.studies.runner import Runner
        from cos2p.view.frozen import write_report as freeze

        folder, title = self.folder, f"{self.verb} {self.folder.name}"
        try:
            with study_folder(folder, self.verb) as place, _showing(title, self.jobs, self.mode) as view:
                runner = Runner(
                    place, view, self.jobs, self.retry, engine=self.engine, figures_only=self.keep == "figures"
                )
                report = (drive or run_study)(plan, runner, lambda so_far: write_report(so_far, place))
                write_report(report, place)
        except Interrupted as stop:
            complain(f"{stop}; the same command goes on with the study in {shlex.quote(str(folder))}", label="")
            raise typer.Exit(130) from None
        with reading(self.mode) as progress:
            freeze([folder], folder / "report.html", progress)
        _print(report, folder, self.mode)
        if report.failures:
            complain(
                f"{len(report.failures)} of {len(report.grid.places)} runs failed; reasons are in {folder / 'table.md'}"
            )
            raise typer.Exit(EXIT_FAILED_CELLS)


def _common(
    ctx: typer.Context,
    recipe: RecipeName,
    seeds: Seeds = "0,1,2",
    out: Out = None,
    updates: Updates = None,
    changes: Changes = None,
    jobs: Jobs = 1,
    engine: Engine = None,
    keep: Keep = "all",
    retry: Retry = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    json: Json = False,
) -> Study:
    verb = str(ctx.info_name)
    if keep not in KEEPS:
        raise ConfigError(f"--keep {keep!r} is unknown; known: {', '.join(KEEPS)}")
    return Study(
        command=command_line(ctx),
        verb=verb,
        recipe=recipe,
        seeds=parse_seeds(seeds),
        updates=updates,
        changes=tuple(changes or ()),
        folder=out or Path("runs") / f"{verb}-{Path(recipe).name.removesuffix('.toml')}",
        mode=OutputMode.of(ctx, quiet, verbose, json),
        jobs=jobs,
        retry=retry,
        engine=engine_settings(engine),
        keep=keep,
    )


def study_verb(verb: Callable[..., None]) -> Callable[..., None]:
    """`verb(study, own options...)` as a command that has the common options too."""
    own = list(inspect.signature(verb, eval_str=True).parameters.values())[1:]
    context, recipe, *rest = inspect.signature(_common, eval_str=True).parameters.values()
    names = {parameter.name for parameter in own}

    def command(**given: Any) -> None:
        study = _common(**{name: value for name, value in given.items() if name not in names})
        verb(study, **{name: value for name, value in given.items() if name in names})

    parameters = [one.replace(kind=one.KEYWORD_ONLY) for one in (context, recipe, *own, *rest)]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    command.__name__, command.__doc__ = verb.__name__, verb.__doc__
    return command


@contextmanager
def _showing(title: str, jobs: int, mode: OutputMode) -> Iterator[StudyProgress]:
    from cos2p.studies.progress import StudyProgress
    from cos2p.studies.views import JsonView, showing

    if mode.quiet:
        yield StudyProgress(jobs)
    elif mode.json:
        yield JsonView(print_json, jobs)
    else:
        with showing(console(stderr=True), title, jobs, mode.verbose) as view:
            yield view


def _print(report: Report, folder: Path, mode: OutputMode) -> None:
    if mode.json:
        values: dict[str, Any] = report.to_dict()
        figures = {key: values[key] for key in ("title", "seeds", "updates", "tables")}
        print_json({"kind": "study", "study": report.kind, "out": str(folder), **figures})
        return
    from cos2p.studies.views import summary

    console().print(summary(report, folder))


# ---------------------------------------------------------------- --tune

TUNE_SEED = 1000

Tune = Annotated[
    bool, typer.Option("--tune", help="Search a learning rate for each method first, on validation data only.")
]
Rates = Annotated[
    str, typer.Option(help="Rates to try, with commas.", show_default="¼, ½, 1, 2 and 4 times the recipe's")
]
TuneSeed = Annotated[int, typer.Option(min=0, help="Seed of the search; not one of --seeds.")]
TuneUpdates = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[METHOD:]N",
        help="Client updates of a trial, of all methods or of one.",
        show_default="as many as in a run",
    ),
]
TuneFinalists = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="N",
        help="Where trials are shorter than the runs: the best N are tried again at full length.",
    ),
]


def search_of(tune: bool, lrs: str, seed: int, updates: Sequence[str], finalists: int) -> Search | None:
    """The search that these options ask for; None without --tune."""
    from cos2p.studies.tuning import Search

    if not tune:
        if lrs or updates or finalists:
            raise ConfigError("--lrs, --tune-updates and --tune-finalists say how rates are searched; add --tune")
        return None
    length, length_of = parse_lengths("--tune-updates", updates)
    return Search(parse_numbers("--lrs", lrs), seed, length, length_of, finalists)
