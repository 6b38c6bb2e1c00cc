"""The learning rate of each row: the same small grid for all, compared on validation data alone, by a seed of its own.

In trials the order of methods turned with the learning rate. A rival at a rate chosen for another method is no rival.
Nor is one in a form that its authors would not choose here: where a method is known in several (`Method.forms`), the
others are then tried at the best rate of the recipe's own, and one that wins also at the neighbouring rates. Short
trials favour what learns fast: the best of them can be tried again at full length (`Search.finalists`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cos2p.errors import ConfigError, RecipeError
from cos2p.methods import method_class
from cos2p.recipe import Recipe
from cos2p.studies.columns import TRIAL_PREFIX
from cos2p.studies.grid import Base, CellOutcome, Execute, Row, make_grid, refuse_stranger

VALIDATION_ALONE = ("data.test_samples=1", "schedule.evaluate_every=1000000")
"""Changes to a trial's recipe, of which nothing is asked but its last validation score. (A test set there must be.)"""
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
TUNING_SEED = 1000


def is_trial(recipe: Recipe) -> bool:
    """A score on a test set of one sample says nothing."""
    return recipe.data.test_samples == 1


@dataclass(frozen=True)
class Search:
    lrs: tuple[float, ...] = ()
    """Rates to try; empty: the recipe's times `FACTORS`."""
    seed: int = TUNING_SEED
    updates: int | None = None
    """Client updates of a trial; None: as many as in the final runs."""
    updates_of: Mapping[str, int] = field(default_factory=dict)
    """Lengths of the trials of single methods, such as one that takes ten times as long as the others."""
    finalists: int = 0
    """How many of a row's best settings are tried again at full length, which then decides. Only where trials are
    shorter; not of the methods in `updates_of`, which are too slow for it."""

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

    def finalists_of(self, row: str, final: int) -> int:
        shortened = row not in self.updates_of and self.length(row, final) < final
        return self.finalists if shortened else 0

    def check(self, base: Base, methods: Sequence[str], seeds: Sequence[int]) -> None:
        """That the search can choose, and does not choose by the data of the final runs' scores."""
        if self.seed in seeds:
            raise ConfigError(f"the tuning seed {self.seed} is among the final seeds; choose another by --tune-seed")
        for method, updates in self.updates_of.items():
            refuse_stranger(f"--tune-updates {method}:{updates}", method, methods)
        if bad := [lr for lr in self.lrs if not 0 < lr < math.inf]:
            raise ConfigError(f"learning rate {bad[0]:g}: must be above 0")
        data = base.load(Row("", "")).data
        if not data.validation and not data.validation_fraction:
            raise ConfigError(
                f"{base.recipe} keeps no validation samples to choose a rate by; set data.validation_fraction to 0.1"
            )


@dataclass(frozen=True)
class Setting:
    """The settings of a trial: a learning rate, and a form of the method."""

    lr: float
    form: str = ""
    """A name in `Method.forms`; empty: as the recipe has it."""
    whole: bool = False
    """A finalist, tried at full length."""

    def key(self, row: str) -> str:
        """The key of a trial."""
        return f"{TRIAL_PREFIX}{'whole-' if self.whole else ''}{self.folder(row)}"

    def folder(self, row: str) -> str:
        return f"{row}-lr{self.lr:g}" + (f"-{self.form}" if self.form else "")

    def words(self) -> str:
        words = f"lr {self.lr:g}" + (f", {self.form}" if self.form else "")
        return f"{words}, full length" if self.whole else words


@dataclass
class Choice:
    """The trials of a row, and the best of them."""

    recipe_lr: float
    trials: dict[Setting, CellOutcome] = field(default_factory=dict)

    @property
    def scores(self) -> dict[Setting, float | None]:
        """As `validation_merit` has them; None where the run failed."""
        return {setting: validation_merit(outcome.result or {}) for setting, outcome in self.trials.items()}

    @property
    def ranking(self) -> tuple[Setting, ...]:
        return rank(self.scores, self.recipe_lr)

    @property
    def best(self) -> Setting:
        """Without any score, the recipe as it is."""
        return self.ranking[0] if self.found else Setting(self.recipe_lr)

    @property
    def lr(self) -> float:
        return self.best.lr

    @property
    def found(self) -> bool:
        return bool(self.ranking)

    @property
    def at_edge(self) -> bool:
        """The best rate is the smallest or largest tried: a better one may lie beyond."""
        rates = {setting.lr for setting in self.trials}
        return self.found and len(rates) > 1 and self.lr in (min(rates), max(rates))

    def words(self) -> str:
        edge = " (edge)" if self.at_edge else "" if self.found else " (untuned)"
        return f"{self.lr:g}{edge}" + (f", {self.best.form}" if self.best.form else "")


def search_settings(
    base: Base, rows: Sequence[Row], search: Search, execute: Execute, finals: int
) -> dict[str, Choice]:
    """Rates, then forms at the best rate, then the neighbouring rates for a form that won, then the finalists.

    `finals` runs come after the search.
    """
    choices = {row.key: Choice(base.load(row).training.first_lr) for row in rows}
    rates = {key: search.rates(choice.recipe_lr) for key, choice in choices.items()}
    forms = {row.key: possible_forms(base, row) for row in rows}
    seats = {row.key: search.finalists_of(row.key, base.updates or 0) for row in rows}
    later = sum(seats.values()) + finals

    def attempt(settings: Callable[[str], Sequence[Setting]], later: int) -> None:
        tried = [(row, setting) for row in rows for setting in settings(row.key)]
        if tried:
            grid = make_grid(base, [_trial(base, search, *one) for one in tried], (search.seed,))
            outcomes = execute(grid.cells, later=later)
            for row, setting in tried:
                choices[row.key].trials[setting] = outcomes[grid.name(setting.key(row.key), search.seed)]

    attempt(lambda key: [Setting(lr) for lr in rates[key]], sum(map(len, forms.values())) + later)
    attempt(lambda key: [Setting(choices[key].lr, form) for form in forms[key]], later)
    attempt(lambda key: neighbours(choices[key].best, rates[key]), later)
    attempt(lambda key: [replace(found, whole=True) for found in choices[key].ranking[: seats[key]]], finals)
    return choices


def possible_forms(base: Base, row: Row) -> list[str]:
    """The forms that the recipe can have: rescaling, say, means nothing where a pretrained model stays whole."""
    found = []
    for name, changes in method_class(base.load(row).method["name"]).forms.items():
        try:
            base.load(replace(row, changes=(*row.changes, *changes)))
        except RecipeError:
            continue
        found.append(name)
    return found


def neighbours(best: Setting, rates: Sequence[float]) -> list[Setting]:
    """A form other than the recipe's has seen one rate only: it at the next smaller and larger of ascending `rates`.

    >>> [setting.lr for setting in neighbours(Setting(0.002, "other"), (0.001, 0.002, 0.004, 0.008))]
    [0.001, 0.004]
    >>> neighbours(Setting(0.002), (0.001, 0.002, 0.004, 0.008))
    []
    """
    if not best.form:
        return []
    place = rates.index(best.lr)
    return [replace(best, lr=lr) for lr in (*rates[max(place - 1, 0) : place], *rates[place + 1 : place + 2])]


def _trial(base: Base, search: Search, row: Row, setting: Setting) -> Row:
    final = base.updates or 0
    measure = f"schedule.updates={final if setting.whole else search.length(row.key, final)}"
    trial = tuned(replace(row, changes=(*row.changes, *VALIDATION_ALONE, measure)), setting)
    return replace(trial, key=setting.key(row.key), folder="", title=f"{row.title}, {setting.words()}")


def tuned(row: Row, setting: Setting) -> Row:
    form = method_class(row.method).forms[setting.form] if row.method and setting.form else ()
    changes = (*row.changes, *form, f"training.lr={setting.lr!r}")
    return replace(row, changes=changes, folder=setting.folder(row.key))


def validation_merit(result: Mapping[str, Any]) -> float | None:
    """Larger is better: validation top-1, of a language model its perplexity, negative."""
    perplexity = result.get("validation_perplexity")
    return result.get("validation_top1") if perplexity is None else -perplexity


def rank(scores: Mapping[Setting, float | None], recipe_lr: float) -> tuple[Setting, ...]:
    """Those that have a score, the best first; a score at full length counts more than any other.

    Among equal ones the recipe's own form comes first, and the rate nearest to the recipe's.

    >>> half, other = Setting(0.002), Setting(0.002, "other")
    >>> rank({Setting(0.001): 0.5, half: 0.6, other: 0.6, Setting(0.016): None}, 0.004) == (half, other, Setting(0.001))
    True
    """
    known = {setting: score for setting, score in scores.items() if score is not None}

    def worth(setting: Setting) -> tuple[bool, float, bool, float, float]:
        distance = abs(round(math.log(setting.lr / recipe_lr), 9))
        return setting.whole, known[setting], not setting.form, -distance, -setting.lr

    return tuple(sorted(known, key=worth, reverse=True))


# ---------------------------------------------------------------- what was found, for its file and for readers


def tuning_record(search: Search, choices: Mapping[str, Choice], updates: int) -> dict[str, Any]:
    return {
        "score_name": _score_name(choices),
        "seed": search.seed,
        "updates": search.updates or updates,
        "rows": {
            row: {
                "lr": choice.lr,
                "form": choice.best.form,
                "recipe_lr": choice.recipe_lr,
                "updates": search.length(row, updates),
                "found": choice.found,
                "at_edge": choice.at_edge,
                "tried": [
                    {
                        "lr": setting.lr,
                        "form": setting.form,
                        "updates": updates if setting.whole else search.length(row, updates),
                        _score_name(choices): None if score is None else abs(score),
                        "folder": f"cells/{choice.trials[setting].cell}",
                        "failure": choice.trials[setting].failure,
                    }
                    for setting, score in choice.scores.items()
                ],
            }
            for row, choice in choices.items()
        },
    }


def _score_name(choices: Mapping[str, Choice]) -> str:
    """The figure of a trial's result behind the scores: those of language models are negative perplexities."""
    scores = [score for choice in choices.values() for score in choice.scores.values() if score is not None]
    return "validation_perplexity" if min(scores, default=0.0) < 0 else "validation_top1"


def tuning_notes(choices: Mapping[str, Choice], search: Search, updates: int) -> list[str]:
    """Notes that the reader of a table with tuned rates needs."""
    length = "" if search.updates in (None, updates) else f" of {search.updates:,} updates"
    lengths = {row: search.length(row, updates) for row in choices if row in search.updates_of}
    if lengths:
        length += f" ({', '.join(f'{row}: {own:,} updates' for row, own in lengths.items())})"
    seats = max(search.finalists_of(row, updates) for row in choices)
    all_but = " (not for the methods named)" if lengths else ""
    then = f", then between the best {seats} by one of full length{all_but}" if seats else ""
    score = "perplexity" if _score_name(choices) == "validation_perplexity" else "top-1"
    notes = [
        f"Learning rates chosen per row by validation {score} of one trial{length} each{then}, seed {search.seed}."
    ]
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


# ---------------------------------------------------------------- the rows as they will run


def settle(
    base: Base, rows: Sequence[Row], seeds: Sequence[int], search: Search | None, execute: Execute
) -> tuple[list[Row], list[str], Mapping[str, Any] | None]:
    """Each row at the rate and in the form that a search finds, or as the recipe has them.

    Returns them with notes for the reader and the record of the search.
    """
    if search is None:
        return list(rows), [_rates_note(base, rows)], None
    search.check(base, [base.method(row) for row in rows], seeds)
    choices = search_settings(base, rows, search, execute, finals=len(rows) * len(seeds))
    updates = base.updates or 0
    settled = [
        replace(tuned(row, choices[row.key].best), facts={**row.facts, "lr": choices[row.key].words()}) for row in rows
    ]
    return settled, tuning_notes(choices, search, updates), tuning_record(search, choices, updates)


def _rates_note(base: Base, rows: Sequence[Row]) -> str:
    """At which learning rates rows train that nothing was searched for."""
    rates = {method_class(base.method(row)).title: base.load(row).training.lr for row in rows}
    if set(rates.values()) == {Base(base.recipe).load(Row("", "")).training.lr}:
        return "Every method at the recipe's learning rate; --tune searches one for each."
    by_rate: dict[str, list[str]] = {}
    for title, rate in sorted(rates.items(), key=lambda item: (str(item[1]) == "auto", item[1])):
        by_rate.setdefault(rate if rate == "auto" else f"{rate:g}", []).append(title)
    words = "; ".join(f"{rate}: {', '.join(titles)}" for rate, titles in by_rate.items())
    return f"Learning rates as given, not searched here. {words}."
