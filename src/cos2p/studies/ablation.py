"""`ablate`: what each part of Co-S²P is worth. The paper's eight rows, and rows of our own; each is only data."""

from __future__ import annotations

from dataclasses import replace

from cos2p.errors import ConfigError
from cos2p.studies.grid import CellOutcomes, Grid, Row
from cos2p.studies.report import StudyPlan
from cos2p.studies.tables import Table, differences_table, results_table

YES, NO = "✓", "✗"
NO_EXITS = "method.exits.kind=none"
"""The one field: what a recipe says of how the top exit starts and ends stays as it is."""


def _paper(key: str, title: str, units: bool, heads: bool, distillation: bool, semi_async: bool) -> Row:
    """A row of the paper's table: which of its four ticks are set.

    Without self-distillation there are no exits to distil into: the part is taken out whole. Exits that learn from
    the labels alone are a row of our own.
    """
    ticks = {"units": units, "heads": heads, "self-distillation": distillation, "semi-asynchronous": semi_async}
    return Row(
        key,
        title,
        changes=(
            f"method.masks.units={'trainable' if units else 'fixed'}",
            f"method.masks.heads={'trainable' if heads else 'fixed'}",
            "method.exits.kind=tiers" if distillation else NO_EXITS,
        ),
        method="cos2p" if semi_async else "cos2p-sync",
        facts={name: YES if tick else NO for name, tick in ticks.items()},
    )


PAPER_FULL = "all-parts"
PAPER_ROWS = (
    _paper("no-masks-no-distillation", "semi-asynchronous alone", False, False, False, True),
    _paper("no-masks", "fixed random masks", False, False, True, True),
    _paper("heads-only", "masks of heads alone train", False, True, True, True),
    _paper("units-only", "masks of units alone train", True, False, True, True),
    _paper("no-distillation", "no self-distillation (no exits)", True, True, False, True),
    _paper("synchronous", "synchronous", True, True, True, False),
    _paper("synchronous-no-distillation", "synchronous, no self-distillation", True, True, False, False),
    _paper(PAPER_FULL, "Co-S²P with all parts", True, True, True, True),
)
"""In the paper's order (Table "Effectiveness of ...": Linear, MSA, Self-dist., Semi-async.)."""


def _own(key: str, title: str, *changes: str) -> Row:
    short = ", ".join(change.removeprefix("method.") for change in changes)
    return Row(key, title, changes, "cos2p", {"changed": short or "nothing"})


_BY_SCORES = ("method.masks.heads=first-order", "method.masks.units=first-order")
OWN_FULL = "as-the-recipe"
OWN_ROWS = (
    _own(OWN_FULL, "Co-S²P as the recipe has it"),
    _own("no-exits", "no exits", NO_EXITS),
    _own("labels-only", "exits learn from labels alone (λ2 = 0)", "method.exits.lambda2=0.0"),
    _own("shared-head", "one head for all exits", "model.exits=shared"),
    _own("uniform-weights", "plain average instead of γ", "method.weighting=uniform"),
    _own("random-masks", "masks drawn anew every task", "method.masks.heads=random", "method.masks.units=random"),
    _own("first-order-masks", "masks by first-order scores", *_BY_SCORES),
    _own("cheap-scores", "masks by first-order scores, prefix in 8 bits", *_BY_SCORES, "method.prefix.precision=int8"),
    _own("wire-16", "what trains in 16 bits", "training.wire.down=float16", "training.wire.up=float16"),
    _own("wire-16-8", "16 bits down, 8 up", "training.wire.down=float16", "training.wire.up=int8"),
    _own("wire-8", "what trains in 8 bits", "training.wire.down=int8", "training.wire.up=int8"),
    _own("prefix-float32", "prefix in 32 bits", "method.prefix.precision=float32"),
    _own("prefix-int8", "prefix in 8 bits", "method.prefix.precision=int8"),
    _own("deep-windows", "windows deep and narrow (ratio ¼)", "method.window.ratio=0.25"),
    _own("wide-windows", "windows wide and shallow (ratio 4)", "method.window.ratio=4.0"),
    _own("only-depth", "only depth is cut", "method.window.ratio=1e9"),
    _own("only-width", "only width is cut", "method.window.ratio=0.0"),
    _own("rolling", "windows roll, as in the paper", "method.window.schedule=rolling"),
    _own("balanced", "windows balance coverage", "method.window.schedule=balanced"),
    _own("at-aggregation", "next task at the aggregation", "schedule.redispatch=at-aggregation"),
    _own("at-once", "next task at once", "schedule.redispatch=at-once"),
    _own("rescale", "training-time rescaling", "method.rescale=true"),
    _own("wide-rescaled", "wide windows and rescaling", "method.window.ratio=4.0", "method.rescale=true"),
    _own("skew-ignored", "label skew ignored, as in the paper", "training.label_skew=ignored"),
    _own("logit-adjustment", "logit adjustment against label skew", "training.label_skew=logit-adjustment"),
)
"""Against the recipe as it is; a row that the recipe has already shares its runs. Ratios are R_width / R_depth; a very
large one cuts whole blocks only."""

GROUPS = {"paper": PAPER_ROWS, "ours": OWN_ROWS, "all": (*PAPER_ROWS, *OWN_ROWS)}


def choose_rows(wanted: str) -> tuple[Row, ...]:
    """`paper`, `ours`, `all`, or names with commas; the row that the others are measured by always comes along.

    >>> [row.key for row in choose_rows("no-exits")]
    ['as-the-recipe', 'no-exits']
    """
    known = {row.key: row for row in GROUPS["all"]}
    keys: list[str] = []
    for name in (part.strip() for part in wanted.split(",")):
        if name in GROUPS:
            keys += [row.key for row in GROUPS[name]]
        elif name in known:
            keys.append(name)
        elif name:
            raise ConfigError(f"there is no row {name!r}; known: {', '.join([*GROUPS, *known])}")
    if not keys:
        raise ConfigError(f"--rows {wanted!r} names none; known: {', '.join([*GROUPS, *known])}")
    chosen = set(keys)
    for group, full in ((PAPER_ROWS, PAPER_FULL), (OWN_ROWS, OWN_FULL)):
        if chosen & {row.key for row in group}:
            chosen.add(full)
    return tuple(row for key, row in known.items() if key in chosen)


def ablation(plan: StudyPlan, rows: tuple[Row, ...]) -> StudyPlan:
    return replace(plan, kind="ablate", title="what the parts of Co-S²P are worth", rows=rows, tables=_tables)


def _tables(grid: Grid, outcomes: CellOutcomes) -> list[Table]:
    tables = []
    for name, title, group, full in (
        ("paper", "The paper's rows", PAPER_ROWS, PAPER_FULL),
        ("own", "Rows of our own", OWN_ROWS, OWN_FULL),
    ):
        rows = [row for row in grid.rows if row in group]
        if rows:
            results = results_table(name, title, grid, outcomes, rows)
            tables.append(results)
            if len(rows) > 1:
                against = f"{title}: differences to {results.line(full).title}"
                tables.append(differences_table(f"{name}-differences", against, results, full))
    return tables
