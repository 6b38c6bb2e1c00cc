"""What a search for settings found, for its file and for the reader of the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cos2p.studies.tuning import Choice, Search, Trials


def tuning_record(search: Search, trials: Trials, choices: Mapping[str, Choice], updates: int) -> dict[str, Any]:
    """For tuning.json."""
    return {
        "judged_by": _judged_by(choices),
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
                        "updates": updates if setting.whole else search.length(row, updates),
                        _judged_by(choices): None if score is None else abs(score),
                        "folder": trials.folder(row, setting),
                        "failure": choice.failures.get(setting, ""),
                    }
                    for setting, score in choice.scores.items()
                ],
            }
            for row, choice in choices.items()
        },
    }


def _judged_by(choices: Mapping[str, Choice]) -> str:
    """The figure of a trial's result behind the scores: those of language models are negative perplexities."""
    scores = [score for choice in choices.values() for score in choice.scores.values() if score is not None]
    return "validation_perplexity" if min(scores, default=0.0) < 0 else "validation_top1"


def tuning_notes(choices: Mapping[str, Choice], search: Search, updates: int) -> list[str]:
    """What the reader of a table with tuned rates must know."""
    length = "" if search.updates in (None, updates) else f" of {search.updates:,} updates"
    lengths = {row: search.length(row, updates) for row in choices if row in search.updates_of}
    if lengths:
        length += f" ({', '.join(f'{row}: {own:,} updates' for row, own in lengths.items())})"
    seats = max(search.finalists_of(row, updates) for row in choices)
    all_but = " (not for the methods named)" if lengths else ""
    then = f", then between the best {seats} by one of full length{all_but}" if seats else ""
    score = "perplexity" if _judged_by(choices) == "validation_perplexity" else "top-1"
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
