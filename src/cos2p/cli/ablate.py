"""`cos2p ablate`: what each part of Co-S²P is worth."""

from __future__ import annotations

from typing import Annotated

import typer

from cos2p.cli.studies import Study, study_verb


@study_verb
def ablate(
    study: Study,
    rows: Annotated[str, typer.Option(help="paper, ours, all, or names of rows with commas.")] = "all",
) -> None:
    """Take Co-S²P apart: the paper's ablation table and rows of our own.

    cos2p ablate fashion-mini --rows paper --jobs 2 --out runs/ablation
    """
    from cos2p.studies.ablation import ablation, choose_rows

    study.conduct(ablation(study.plan(), choose_rows(rows)))
