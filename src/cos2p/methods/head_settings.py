"""Settings of heads that may start and end in closed form; `closed_heads` is what follows from them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cos2p.aggregation.closed_form import HeadForm
from cos2p.settings import Settings


class HeadSettings(Settings):
    """Where heads begin, and where the top one ends."""

    start: Literal["fresh", "means", "discriminant"] = Field(
        default="fresh",
        description="`fresh`: as the model came; `means`, `discriminant`: in closed form from sums of features by "
        "class, which each device reports in its first task (the server learns its class counts and mean features).",
    )
    finish: Literal["trained", "as-start", "means", "discriminant"] = Field(
        default="trained",
        description="Where the top head ends: as it was `trained`, or once more in closed form, from sums that every "
        "device reports in a last round, of the features as they are then; `as-start`: in the form of `start`, and "
        "`trained` if that is `fresh`. The round waits for everybody and takes as many of `schedule.updates` as there "
        "are devices; a run that is stopped earlier ends as trained.",
    )

    @property
    def start_form(self) -> HeadForm | None:
        return None if self.start == "fresh" else self.start

    @property
    def finish_form(self) -> HeadForm | None:
        if self.finish == "as-start":
            return self.start_form
        return None if self.finish == "trained" else self.finish


def _heads(settings: Settings) -> HeadSettings | None:
    heads = settings if isinstance(settings, HeadSettings) else getattr(settings, "exits", None)
    return heads if isinstance(heads, HeadSettings) else None


def ends_in_closed_form(settings: Settings) -> bool:
    """Whether a method with these settings ends with a head in closed form; before, its scores are those of
    a trained one."""
    heads = _heads(settings)
    return heads is not None and heads.finish_form is not None


def asks_statistics(settings: Settings, final: bool, moments: bool) -> bool:
    """Whether a method with these settings asks its devices for sums of features, at the start or (`final`) at the end,
    and for sums of their products (`moments`)."""
    heads = _heads(settings)
    form = None if heads is None else heads.finish_form if final else heads.start_form
    return form is not None and (form == "discriminant" or not moments)


def trained_instead(settings: Settings) -> str:
    """What to set where the head cannot end in closed form."""
    field = "method.finish" if isinstance(settings, HeadSettings) else "method.exits.finish"
    return f'let the head end as it is trained: {field} = "trained"'
