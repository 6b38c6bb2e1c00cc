"""What a device says of its troubles: a code and counts. The full text, with paths and names, stays in its own log."""

from __future__ import annotations

from cos2p.errors import BudgetError, ConfigError, DataError, MissingExtra, OwnerRefused, TrainingError, UpdateRefused

_CODES: tuple[tuple[type[BaseException], str, str], ...] = (
    (OwnerRefused, "owner", "its owner has not allowed what the run asks"),
    (DataError, "data", "its data cannot be used for this run"),
    (TrainingError, "training", "the task could not be done with its data"),
    (BudgetError, "budget", "the task does not fit it"),
    (UpdateRefused, "transfer", "what was sent to it cannot be read"),
    (MissingExtra, "software", "a package is missing on it"),
    (ConfigError, "recipe", "its version cannot read the recipe"),
    (OSError, "disk", "its disk cannot hold the task"),
)


def outward(error: BaseException) -> str:
    """The one line that may leave the device; of an error's own words only what was written for outside.

    >>> outward(DataError("/home/ann/patients.csv has no column 'diagnosis'"))
    'data: its data cannot be used for this run; its own log says more'
    """
    code, sentence = next(((c, s) for kind, c, s in _CODES if isinstance(error, kind)), ("error", "it went wrong"))
    told = getattr(error, "told", "")
    return f"{code}: {sentence}{f' ({told})' if told else ''}; its own log says more"
