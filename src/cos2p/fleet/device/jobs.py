"""Requests of the executor to its training process, and a device's words for its errors.

Without torch: the executor itself stays small.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from cos2p.errors import (
    BudgetError,
    ConfigError,
    DataError,
    MissingExtra,
    OwnerRefused,
    RunError,
    TrainingError,
    UpdateRefused,
)
from cos2p.fleet.device.owner import DeviceFile


@dataclass(frozen=True, kw_only=True)
class Setup(DeviceFile):
    """The device as `cos2p fleet join` describes it, and the run's own part."""

    name: str
    recipe: dict[str, Any]
    config: dict[str, Any]
    classes: list[str]
    root: str = ""
    """Without data of its own: the folder in which the recipe's data are looked up, and nowhere else."""
    report: bool = False
    """Whether losses and scores go back with an update."""
    owner: dict[str, Any] = field(default_factory=dict)
    """The owner's rules, as `owner.OwnerFile` dumps them."""
    kit: str = ""
    """The device's folder, for its account of ε ..."""
    run: str = ""
    """... and the run's name, under which it is kept."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Job:
    """One task, by the files it is in."""

    task: str
    update: str
    remembered: str


# ---------------------------------------------------------------- errors

_CODES: tuple[tuple[type[BaseException], str, str], ...] = (
    (OwnerRefused, "owner", "its owner has not allowed what the run asks"),
    (DataError, "data", "its data cannot be used for this run"),
    (TrainingError, "training", "the task could not be done with its data"),
    (BudgetError, "budget", "the task does not fit it"),
    (UpdateRefused, "transfer", "what was sent to it cannot be read"),
    (MissingExtra, "software", "a package is missing on it"),
    (ConfigError, "recipe", "its version cannot read the recipe"),
    (OSError, "disk", "its disk cannot hold the task"),
    (RunError, "disk", "its disk cannot hold the task"),
)


def outward(error: BaseException) -> str:
    """The one line that may leave the device: a code, and of the error's own words only those written for outside.

    The full text, with paths and names, stays in the device's own log.

    >>> outward(DataError("/home/ann/patients.csv has no column 'diagnosis'"))
    'data: its data cannot be used for this run; its own log says more'
    """
    code, sentence = next(((c, s) for kind, c, s in _CODES if isinstance(error, kind)), ("error", "it went wrong"))
    public = getattr(error, "public", "")
    return f"{code}: {sentence}{f' ({public})' if public else ''}; its own log says more"
