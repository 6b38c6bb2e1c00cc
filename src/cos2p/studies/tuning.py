"""The learning rate of each row: the same small grid for all, judged on validation data alone, by a seed of its own.

In trials the order of methods turned with the learning rate. A rival at a rate chosen for another method is no rival.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cos2p.errors import ConfigError
from cos2p.studies.grid import Base, Grid, Row, make_grid
from cos2p.studies.outcome import Outcomes

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
TUNING_SEED = 1000


@dataclass(frozen=True)
class Search:
    """How rates are searched."""

    lrs: tuple[float, ...] = ()
    """Rates to try; empty: the recipe's times `FACTORS`."""
    seed: int = TUNING_SEED
    updates: int | None = None
    """Client updates of a trial; None: as many as in the final runs."""

    def rates(self, recipe_lr: float) -> tuple[float, ...]:
        """Ascending, without repetition.

        >>> Search().rates(4e-3)
        (0.001, 0.002, 0.004, 0.008, 0.016)
        """
        rates = self.lrs or [recipe_lr * factor for factor in FACTORS]
        return tuple(sorted({float(f"{lr:.6g}") for lr in rates}))

    def check(self, base: Base, seeds: Sequence[int]) -> None:
        """That the search can choose, and does not choose by what the final runs are judged on."""
        if self.seed in seeds:
            raise ConfigError(f"the tuning seed {self.seed} is among the final seeds; choose another by --tune-seed")
        if bad := [lr for lr in self.lrs if not 0 < lr < math.inf]:
            raise ConfigError(f"learning rate {bad[0]:g}: must be above 0")
        data = base.load(Row("", "")).data
        if not data.validation and not data.validation_fraction:
            raise ConfigError(
                f"{base.recipe} keeps no validation samples to choose a rate by; set data.validation_fraction to 0.1"
            )


@dataclass(frozen=True)
class Choice:
    """What the search found for a row."""

    lr: float
    scores: Mapping[float, float | None]
    """Validation top-1 by rate; None where the run failed."""
    failures: Mapping[float, str]

    @property
    def found(self) -> bool:
        return self.scores.get(self.lr) is not None

    @property
    def at_edge(self) -> bool:
        """The best rate is the smallest or largest tried: a better one may lie beyond."""
        return self.found and len(self.scores) > 1 and self.lr in (min(self.scores), max(self.scores))

    def words(self) -> str:
        return f"{self.lr:g}" + (" (edge)" if self.at_edge else "" if self.found else " (untuned)")


@dataclass(frozen=True)
class Trials:
    """The search's own grid, and which cell tries which rate of which row."""

    grid: Grid
    rates: Mapping[str, Mapping[float, str]]
    """Row → rate → key of the trial's row."""
    recipe_lrs: Mapping[str, float]

    def choices(self, outcomes: Outcomes) -> dict[str, Choice]:
        return {row: self._choice(row, outcomes) for row in self.rates}

    def _choice(self, row: str, outcomes: Outcomes) -> Choice:
        scores: dict[float, float | None] = {}
        failures = {}
        for lr, trial in self.rates[row].items():
            outcome = outcomes[self.grid.name(trial, self.grid.seeds[0])]
            scores[lr] = (outcome.result or {}).get("validation_top1")
            if outcome.result is None:
                failures[lr] = outcome.failure
        return Choice(best_rate(scores, self.recipe_lrs[row]), scores, failures)


def make_trials(base: Base, rows: Sequence[Row], search: Search) -> Trials:
    shorter = replace(base, updates=search.updates or base.updates)
    trials, rates, recipe_lrs = [], {}, {}
    for row in rows:
        recipe_lrs[row.key] = base.load(row).training.lr
        keys = {lr: f"tune-{row.key}-lr{lr:g}" for lr in search.rates(recipe_lrs[row.key])}
        rates[row.key] = keys
        for lr, key in keys.items():
            trials.append(replace(tuned(row, lr), key=key, title=f"{row.title}, lr {lr:g}"))
    return Trials(make_grid(shorter, trials, (search.seed,)), rates, recipe_lrs)


def tuned(row: Row, lr: float) -> Row:
    return replace(row, changes=(*row.changes, f"training.lr={lr!r}"))


def best_rate(scores: Mapping[float, float | None], recipe_lr: float) -> float:
    """The rate with the best score; of equal ones that nearest to the recipe's. Without any score, the recipe's.

    >>> best_rate({0.001: 0.5, 0.002: 0.6, 0.008: 0.6, 0.016: None}, 0.004), best_rate({0.1: None}, 0.004)
    (0.002, 0.004)
    """
    known = {lr: score for lr, score in scores.items() if score is not None}
    if not known:
        return recipe_lr
    return max(known, key=lambda lr: (known[lr], -abs(round(math.log(lr / recipe_lr), 9)), -lr))


def tuning_record(search: Search, trials: Trials, choices: Mapping[str, Choice], updates: int) -> dict[str, Any]:
    """For tuning.json."""
    seed = trials.grid.seeds[0]
    return {
        "judged_by": "validation_top1",
        "seed": search.seed,
        "updates": search.updates or updates,
        "rows": {
            row: {
                "lr": choice.lr,
                "recipe_lr": trials.recipe_lrs[row],
                "found": choice.found,
                "at_edge": choice.at_edge,
                "tried": [
                    {
                        "lr": lr,
                        "validation_top1": score,
                        "folder": f"cells/{trials.grid.name(trials.rates[row][lr], seed)}",
                        "failure": choice.failures.get(lr, ""),
                    }
                    for lr, score in choice.scores.items()
                ],
            }
            for row, choice in choices.items()
        },
    }


def tuning_notes(choices: Mapping[str, Choice], search: Search, updates: int) -> list[str]:
    """What the reader of a table with tuned rates must know."""
    length = "" if search.updates in (None, updates) else f" of {search.updates:,} updates"
    notes = [f"Learning rates chosen per row by validation top-1 of one trial{length} each, seed {search.seed}."]
    edge = [row for row, choice in choices.items() if choice.at_edge]
    if edge:
        notes.append(f"The best rate is at the edge of the grid for {', '.join(edge)}; --lrs can widen it.")
    lost = [row for row, choice in choices.items() if not choice.found]
    if lost:
        notes.append(f"No rate of the grid worked for {', '.join(lost)}; the recipe's is used.")
    return notes
