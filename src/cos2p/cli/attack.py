"""`cos2p attack`: malicious devices against a recipe, with several defences."""

from __future__ import annotations

from typing import Annotated

import typer

from cos2p.cli.studies import Study, study_verb


@study_verb
def attack(
    study: Study,
    attacks: Annotated[
        str,
        typer.Option(
            help="all, or some of: flip, scale, noise, constant, little, drift, backdoor, statistics, zero; flip:15 "
            "has a strength of 15. Honest runs come along."
        ),
    ] = "flip,flip:15,noise,drift",
    defences: Annotated[
        str, typer.Option(help="all, or some of: none, default, bound, standing, median, trimmed, geometric.")
    ] = "none,default",
    malicious: Annotated[
        int, typer.Option(min=1, help="How many devices lie: the last ones of the recipe's fleet.")
    ] = 1,
) -> None:
    """Let devices of a simulated fleet lie, and see what each defence is worth.

    cos2p attack quickstart --updates 150 --attacks flip,noise --defences none,standing --out runs/attack
    """
    from cos2p.studies.attack import ATTACKS, DEFENCES, chosen
    from cos2p.studies.attack import attack as attacked

    names = chosen("--attacks", attacks, ATTACKS), chosen("--defences", defences, tuple(DEFENCES))
    study.conduct(attacked(study.plan(), *names, malicious))
