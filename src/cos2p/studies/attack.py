"""`attack`: what a malicious device does to a recipe's model, and what each defence is worth. Rows are only data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import get_args

from cos2p.devices.attacks import Attack
from cos2p.errors import ConfigError
from cos2p.studies.grid import CellOutcomes, Row, RunnableGrid
from cos2p.studies.report import StudyPlan
from cos2p.studies.tables import Table, differences_table, results_table

HONEST = "honest"
ATTACKS = (HONEST, *(kind for kind in get_args(Attack) if kind != "none"))
DEFENCES: dict[str, tuple[str, ...]] = {
    "none": ("robust.bound=0", "robust.combine=mean", "robust.suspicion=off"),
    "default": (),
    "bound": ("robust.bound=3", "robust.combine=mean", "robust.suspicion=off"),
    "standing": ("robust.bound=3", "robust.combine=mean", "robust.suspicion=exclude"),
    "median": ("robust.bound=2", "robust.combine=median", "robust.suspicion=off"),
    "trimmed": ("robust.bound=2", "robust.combine=trimmed", "robust.suspicion=off"),
    "geometric": ("robust.bound=2", "robust.combine=geometric", "robust.suspicion=off"),
}
"""By name, as changes to a recipe; `default` is the recipe's own [robust]."""


def chosen(option: str, wanted: str, known: Sequence[str]) -> tuple[str, ...]:
    """Names with commas, or `all`; behind a colon a name may have a strength.

    >>> chosen("--attacks", "flip,flip:15", ATTACKS)
    ('flip', 'flip:15')
    """
    names = tuple(known) if wanted == "all" else tuple(part.strip() for part in wanted.split(",") if part.strip())
    unknown = [name for name in names if name.partition(":")[0] not in known]
    if unknown or not names:
        raise ConfigError(f"{option} {wanted!r}: there is no {(*unknown, wanted)[0]!r}; known: all, {', '.join(known)}")
    return names


def attack_rows(attacks: Sequence[str], defences: Sequence[str], malicious: int = 1) -> list[Row]:
    """Every attack against every defence; the first row, that all are measured by, is honest."""
    rows = []
    for attack, defence in product(dict.fromkeys((HONEST, *attacks)), defences):
        changes: tuple[str, ...] = () if attack == HONEST else (f"attack.kind={attack}", f"attack.count={malicious}")
        rows.append(
            Row(
                key=f"{attack}+{defence}",
                title=f"{attack}, {defence}",
                changes=(*DEFENCES[defence], *changes),
                facts={"attack": attack, "defence": defence},
            )
        )
    return rows


def attack(plan: StudyPlan, attacks: Sequence[str], defences: Sequence[str], malicious: int = 1) -> StudyPlan:
    rows = attack_rows(attacks, defences, malicious)

    def tables(grid: RunnableGrid, outcomes: CellOutcomes) -> list[Table]:
        results = results_table("results", "Attack × defence", grid, outcomes)
        against = f"Differences to {results.line(rows[0].key).title}"
        return [results, differences_table("differences", against, results, rows[0].key)]

    title = f"{malicious} malicious device{'s' if malicious > 1 else ''}"
    return replace(plan, kind="attack", title=title, rows=tuple(rows), tables=tables)
