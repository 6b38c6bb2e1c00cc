"""Options of studies that search a learning rate for each method first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from cos2p.cli.studies import parse_lengths, parse_numbers
from cos2p.errors import ConfigError

if TYPE_CHECKING:
    from cos2p.studies.tuning import Search

TUNE_SEED = 1000

Tune = Annotated[
    bool, typer.Option("--tune", help="Search a learning rate for each method first, on validation data only.")
]
Rates = Annotated[
    str, typer.Option(help="Rates to try, with commas.", show_default="¼, ½, 1, 2 and 4 times the recipe's")
]
TuneSeed = Annotated[int, typer.Option(min=0, help="Seed of the search; not one of --seeds.")]
TuneUpdates = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[METHOD:]N",
        help="Client updates of a trial, of all methods or of one.",
        show_default="as many as in a run",
    ),
]
TuneFinalists = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="N",
        help="Where trials are shorter than the runs: the best N are tried again at full length.",
    ),
]


@dataclass(frozen=True)
class Tuning:
    """The options as they were given."""

    tune: bool
    lrs: str
    seed: int
    updates: Sequence[str]
    finalists: int

    def search(self) -> Search | None:
        """What they ask for; None without --tune."""
        from cos2p.studies.tuning import Search

        if not self.tune:
            if self.lrs or self.updates or self.finalists:
                raise ConfigError("--lrs, --tune-updates and --tune-finalists say how rates are searched; add --tune")
            return None
        length, length_of = parse_lengths("--tune-updates", self.updates)
        return Search(parse_numbers("--lrs", self.lrs), self.seed, length, length_of, self.finalists)

    def given(self) -> dict[str, object]:
        """For the command line that gives the same study; options at their default are left out."""
        return {
            "tune": self.tune,
            "lrs": self.lrs or None,
            "tune-seed": self.seed if self.tune and self.seed != TUNE_SEED else None,
            "tune-updates": list(self.updates) or None,
            "tune-finalists": self.finalists or None,
        }
