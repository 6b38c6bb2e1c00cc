"""The learning rate of each row: the same small grid for all, judged on validation data alone, by a seed of its own.

In trials the order of methods turned with the learning rate. A rival at a rate chosen for another method is no rival.
Nor is one in a form that its authors would not choose here: where a method is known in several (`Method.forms`), the
others are then tried at the best rate of the recipe's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cos2p.errors import ConfigError
from cos2p.methods import method_class
from cos2p.recipe import Recipe
from cos2p.studies.grid import Base, Grid, Row, make_grid
from cos2p.studies.outcome import Execute, Outcomes

VALIDATION_ALONE = ("data.test_samples=1", "schedule.evaluate_every=1000000")
"""Changes to a trial's recipe, of which nothing is asked but its last validation score. (A test set there must be.)"""
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
TUNING_SEED = 1000


def is_trial(recipe: Recipe) -> bool:
    """A score on a test set of one sample says nothing."""
    return recipe.data.test_samples == 1


@dataclass(frozen=True)
class Search:
    """How rates are searched."""

    lrs: tuple[float, ...] = ()
    """Rates to try; empty: the recipe's times `FACTORS`."""
    seed: int = TUNING_SEED
    updates: int | None = None
    """Client updates of a trial; None: as many as in the final runs."""
    updates_of: Mapping[str, int] = field(default_factory=dict)
    """Of the trials of single methods, such as one that takes ten times as long as the others."""

    def rates(self, recipe_lr: float) -> tuple[float, ...]:
        """Ascending, without repetition.

        >>> Search().rates(4e-3)
        (0.001, 0.002, 0.004, 0.008, 0.016)
        """
        rates = self.lrs or [recipe_lr * factor for factor in FACTORS]
        return tuple(sorted({float(f"{lr:.6g}") for lr in rates}))

    def length(self, row: str, final: int) -> int:
        """Client updates of a row's trials, where its final runs have `final`."""
        return self.updates_of.get(row, self.updates or final)

    def check(self, base: Base, seeds: Sequence[int]) -> None:
        """That the search can choose, and does not choose by what the final runs are judged on."""
        if self.seed in seeds:
            raise ConfigError(f"the tuning seed {self.seed} is among the final seeds; choose another by --tune-seed")
        for method in self.updates_of:
            method_class(method)
        if bad := [lr for lr in self.lrs if not 0 < lr < math.inf]:
            raise ConfigError(f"learning rate {bad[0]:g}: must be above 0")
        data = base.load(Row("", "")).data
        if not data.validation and not data.validation_fraction:
            raise ConfigError(
                f"{base.recipe} keeps no validation samples to choose a rate by; set data.validation_fraction to 0.1"
            )


@dataclass(frozen=True)
class Setting:
    """What a trial tries: a learning rate, and a form of the method."""

    lr: float
    form: str = ""
    """A name in `Method.forms`; empty: as the recipe has it."""

    def key(self, row: str) -> str:
        """Of a trial."""
        return f"tune-{self.folder(row)}"

    def folder(self, row: str) -> str:
        return f"{row}-lr{self.lr:g}" + (f"-{self.form}" if self.form else "")

    def words(self) -> str:
        return f"lr {self.lr:g}" + (f", {self.form}" if self.form else "")


@dataclass(frozen=True)
class Choice:
    """What the search found for a row."""

    best: Setting
    scores: Mapping[Setting, float | None]
    """Validation top-1; None where the run failed."""
    failures: Mapping[Setting, str]

    @property
    def lr(self) -> float:
        return self.best.lr

    @property
    def found(self) -> bool:
        return self.scores.get(self.best) is not None

    @property
    def at_edge(self) -> bool:
        """The best rate is the smallest or largest tried: a better one may lie beyond."""
        rates = {setting.lr for setting in self.scores}
        return self.found and len(rates) > 1 and self.lr in (min(rates), max(rates))

    def words(self) -> str:
        edge = " (edge)" if self.at_edge else "" if self.found else " (untuned)"
        return f"{self.lr:g}{edge}" + (f", {self.best.form}" if self.best.form else "")


@dataclass(frozen=True)
class Trials:
    """The search's own grid, and what is tried for which row."""

    grid: Grid
    settings: Mapping[str, Sequence[Setting]]
    recipe_lrs: Mapping[str, float]

    def choices(self, outcomes: Outcomes) -> dict[str, Choice]:
        return {row: self._choice(row, outcomes) for row in self.settings}

    def folder(self, row: str, setting: Setting) -> str:
        return f"cells/{self.grid.name(setting.key(row), self.grid.seeds[0])}"

    def _choice(self, row: str, outcomes: Outcomes) -> Choice:
        scores: dict[Setting, float | None] = {}
        failures = {}
        for setting in self.settings[row]:
            outcome = outcomes[self.grid.name(setting.key(row), self.grid.seeds[0])]
            scores[setting] = (outcome.result or {}).get("validation_top1")
            if outcome.result is None:
                failures[setting] = outcome.failure
        return Choice(best_setting(scores, self.recipe_lrs[row]), scores, failures)


def search_settings(
    base: Base, rows: Sequence[Row], search: Search, execute: Execute, finals: int
) -> tuple[Trials, dict[str, Choice]]:
    """Rates first, then forms at the rate found; `finals` runs come after the search."""
    forms = {row.key: list(method_class(base.load(row).method["name"]).forms) for row in rows}
    rates = {row.key: [Setting(lr) for lr in search.rates(base.load(row).training.lr)] for row in rows}
    trials = make_trials(base, rows, search, rates)
    outcomes = execute(trials.grid.cells, later=sum(map(len, forms.values())) + finals)
    found = trials.choices(outcomes)
    others = {row: [Setting(found[row].lr, form) for form in names] for row, names in forms.items()}
    if any(others.values()):
        outcomes = {**outcomes, **execute(make_trials(base, rows, search, others).grid.cells, later=finals)}
        trials = make_trials(base, rows, search, {row: [*rates[row], *others[row]] for row in rates})
    return trials, trials.choices(outcomes)


def make_trials(base: Base, rows: Sequence[Row], search: Search, settings: Mapping[str, Sequence[Setting]]) -> Trials:
    trials = []
    for row in rows:
        measure = f"schedule.updates={search.length(row.key, base.updates or 0)}"
        for setting in settings[row.key]:
            title = f"{row.title}, {setting.words()}"
            trial = tuned(replace(row, changes=(*row.changes, *VALIDATION_ALONE, measure)), setting)
            trials.append(replace(trial, key=setting.key(row.key), folder="", title=title))
    recipe_lrs = {row.key: base.load(row).training.lr for row in rows}
    return Trials(make_grid(base, trials, (search.seed,)), settings, recipe_lrs)


def tuned(row: Row, setting: Setting) -> Row:
    form = method_class(row.method).forms[setting.form] if row.method and setting.form else ()
    changes = (*row.changes, *form, f"training.lr={setting.lr!r}")
    return replace(row, changes=changes, folder=setting.folder(row.key))


def best_setting(scores: Mapping[Setting, float | None], recipe_lr: float) -> Setting:
    """That with the best score. Of equal ones the recipe's own form, and the rate nearest to the recipe's.

    Without any score, the recipe as it is.

    >>> half, other = Setting(0.002), Setting(0.002, "other")
    >>> best_setting({Setting(0.001): 0.5, half: 0.6, other: 0.6, Setting(0.016): None}, 0.004) == half
    True
    >>> best_setting({Setting(0.1): None}, 0.004) == Setting(0.004)
    True
    """
    known = {setting: score for setting, score in scores.items() if score is not None}
    if not known:
        return Setting(recipe_lr)

    def rank(setting: Setting) -> tuple[float, bool, float, float]:
        distance = abs(round(math.log(setting.lr / recipe_lr), 9))
        return known[setting], not setting.form, -distance, -setting.lr

    return max(known, key=rank)


def tuning_record(search: Search, trials: Trials, choices: Mapping[str, Choice], updates: int) -> dict[str, Any]:
    """For tuning.json."""
    return {
        "judged_by": "validation_top1",
        "seed": search.seed,
        "updates": search.updates or updates,
        "rows": {
            row: {
                "lr": choice.lr,
                "form": choice.best.form,
                "recipe_lr": trials.recipe_lrs[row],
                "updates": search.length(row, updates),
                "found": choice.found,
                "at_edge": choice.at_edge,
                "tried": [
                    {
                        "lr": setting.lr,
                        "form": setting.form,
                        "validation_top1": score,
                        "folder": trials.folder(row, setting),
                        "failure": choice.failures.get(setting, ""),
                    }
                    for setting, score in choice.scores.items()
                ],
            }
            for row, choice in choices.items()
        },
    }


def tuning_notes(choices: Mapping[str, Choice], search: Search, updates: int) -> list[str]:
    """What the reader of a table with tuned rates must know."""
    length = "" if search.updates in (None, updates) else f" of {search.updates:,} updates"
    lengths = {row: search.length(row, updates) for row in choices if row in search.updates_of}
    if lengths:
        length += f" ({', '.join(f'{row}: {own:,} updates' for row, own in lengths.items())})"
    notes = [f"Learning rates chosen per row by validation top-1 of one trial{length} each, seed {search.seed}."]
    forms = [f"{row}: {choice.best.form}" for row, choice in choices.items() if choice.best.form]
    if forms:
        notes.append(f"Forms chosen likewise, where another than the recipe's was better: {'; '.join(forms)}.")
    edge = [row for row, choice in choices.items() if choice.at_edge]
    if edge:
        notes.append(f"The best rate is at the edge of the grid for {', '.join(edge)}; --lrs can widen it.")
    lost = [row for row, choice in choices.items() if not choice.found]
    if lost:
        notes.append(f"No rate of the grid worked for {', '.join(lost)}; the recipe's is used.")
    return notes
