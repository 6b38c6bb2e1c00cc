"""`cos2p compare`: methods at equal budget, over matched seeds."""

from __future__ import annotations

from typing import Annotated

import typer

from cos2p.cli.studies import TUNE_SEED, Rates, Study, Tune, TuneFinalists, TuneSeed, TuneUpdates, search_of, study_verb


@study_verb
def compare(
    study: Study,
    methods: Annotated[str, typer.Option(help="all, or names with commas.")] = "all",
    reference: Annotated[str, typer.Option(help="The method that differences are taken to.")] = "cos2p",
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ACCURACY",
            help="What each method spends until it has it: 0.55, a method (what it ends with), or 0.9*fedavg.",
        ),
    ] = None,
    tune: Tune = False,
    lrs: Rates = "",
    tune_seed: TuneSeed = TUNE_SEED,
    tune_updates: TuneUpdates = None,
    tune_finalists: TuneFinalists = 0,
) -> None:
    """Compare methods at equal budget, equal data and an equal number of client updates.

    cos2p compare fashion-mini --methods cos2p,fedrolex,ramfed --tune --jobs 2 --out runs/fashion
    """
    from cos2p.methods import method_class
    from cos2p.studies.compare import choose_methods, comparison
    from cos2p.studies.target import parse_target, read_curve

    method_class(reference)
    search = search_of(tune, lrs, tune_seed, tune_updates or (), tune_finalists)
    targets, cells = tuple(map(parse_target, target or ())), study.folder / "cells"
    plan = comparison(
        study.plan(), choose_methods(methods), reference, search, targets, lambda cell: read_curve(cells / cell)
    )
    study.conduct(plan)
