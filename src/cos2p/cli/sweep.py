"""`cos2p sweep`: one setting, or two against each other, over several values."""

from __future__ import annotations

from typing import Annotated

import typer

from cos2p.cli.studies import Study, study_verb


@study_verb
def sweep(
    study: Study,
    over: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=VALUE,VALUE",
            help="An axis: mu, t_clk, lambda1, lambda2, ratio, lr, or the full path of a field. As often as needed.",
        ),
    ],
    method: Annotated[str | None, typer.Option(help="Another method than the recipe's.", show_default=False)] = None,
) -> None:
    """Vary one setting, or two against each other: a table and, for up to two, pictures.

    cos2p sweep fashion-mini --over mu=0.125,0.5,1 --over t_clk=0,10,60 --jobs 2 --out runs/sweep
    """
    from cos2p.studies.sweep import parse_axes
    from cos2p.studies.sweep import sweep as swept

    study.conduct(swept(study.plan(), parse_axes(over), method))
