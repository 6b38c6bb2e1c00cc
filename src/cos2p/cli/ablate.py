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
    from cos2p.studies.ablation import Ablation, choose_rows
    from cos2p.studies.ablation import ablate as run_ablation

    plan = Ablation(base=study.base, rows=choose_rows(rows), seeds=study.seeds, command=study.command(rows=rows))
    study.conduct(lambda execute, write: run_ablation(plan, execute, write))
