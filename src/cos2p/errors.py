"""Errors a user can do something about. Each message names the thing, its value, and what would be right.

Cos2pError                      exit code 1
├── ConfigError                 2   a field has a value that cannot work
│   └── RecipeError             2   ... inside a recipe; names the field's path
├── SpecError                   3   a submodel names a block, head, unit or exit that does not exist
├── BudgetError                 4   a submodel does not fit the device's memory
├── CheckpointError             5   a model checkpoint has missing, extra or misshapen tensors
├── DataError                   6   a data set or a partition of it is missing or impossible
├── RunError                    7   a run folder cannot be written, resumed or read
│   └── Interrupted           130   ... the user stopped it; it can be resumed
├── TrainingError               8   training went wrong on a device (a loss that is not finite, ...)
├── UpdateRefused               9   an update was not let in; the model is unchanged
├── MissingExtra               10   an optional dependency is needed; says what to install
└── OwnerRefused               11   a run asks something of a device that its owner has not allowed
"""

from __future__ import annotations


class Cos2pError(Exception):
    """Root of the tree. The command line prints the message and exits with `exit_code`, without a traceback."""

    exit_code = 1

    def __init__(self, message: str = "", *, public: str = "") -> None:
        """`public`: what of the message may leave a device whose owner keeps its data: counts, no contents, paths or
        names."""
        super().__init__(message)
        self.public = public


class ConfigError(Cos2pError, ValueError):
    exit_code = 2


class RecipeError(ConfigError):
    exit_code = 2


class SpecError(Cos2pError, ValueError):
    exit_code = 3


class BudgetError(Cos2pError):
    exit_code = 4


class CheckpointError(Cos2pError):
    exit_code = 5


class DataError(Cos2pError):
    exit_code = 6


class RunError(Cos2pError):
    exit_code = 7


class Interrupted(RunError):
    """The user stopped a run or a study; it can be resumed."""

    exit_code = 130

    def _render_traceback_(self) -> list[str]:
        """A notebook shows this in place of a traceback."""
        return [str(self)]


class TrainingError(Cos2pError):
    exit_code = 8


class UpdateRefused(Cos2pError):
    exit_code = 9


class MissingExtra(Cos2pError):
    exit_code = 10


class OwnerRefused(Cos2pError):
    exit_code = 11
