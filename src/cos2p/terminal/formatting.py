"""Figures as text: shares in per cent, durations, counts. Text from a client is made safe to print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

from cos2p.tracking.event_kinds import Rated
from cos2p.units import format_bytes


def epsilon_text(spent: Mapping[str, Any] | None) -> str:
    """The cost of a private run; nothing for another.

    >>> epsilon_text({"epsilon": 3.14159, "budget": 8.0, "delta": 1e-05})
    'ε 3.14 of 8 (δ 1e-05)'
    """
    if spent is None:
        return ""
    cost = "∞" if spent["epsilon"] is None else f"{spent['epsilon']:.3g}"
    budget = "" if spent["budget"] is None else f" of {spent['budget']:g}"
    return f"ε {cost}{budget} (δ {spent['delta']:g})"


def over_budget_text(found: Mapping[str, int] | None) -> str:
    """Words for a run that takes more memory than its devices have; nothing for another.

    >>> over_budget_text({"devices": 8, "needs": 357_000_000, "has": 60_000_000})
    'over the budget: needs 357 MB of 60.0 MB, 8 devices have too little'
    """
    if found is None:
        return ""
    have = "has" if found["devices"] == 1 else "have"
    return (
        f"over the budget: needs {format_bytes(found['needs'])} of {format_bytes(found['has'])}, "
        f"{count(found['devices'], 'device')} {have} too little"
    )


def percent(share: float | None, digits: int = 1) -> str:
    """
    >>> percent(0.6314), percent(None)
    ('63.1 %', '–')
    """
    return "–" if share is None else f"{100 * share:.{digits}f} %"


def duration(seconds: float) -> str:
    """Two units at most, the smaller one rounded.

    >>> duration(7.4), duration(214), duration(4321), duration(200_000)
    ('7 s', '3 min 34 s', '1 h 12 min', '2 d 8 h')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return _two(whole, 60, "min", 1, "s")
    if whole < 86400 - 30:
        return _two(whole, 3600, "h", 60, "min")
    return _two(whole, 86400, "d", 3600, "h")


def _two(seconds: int, large: int, large_name: str, small: int, small_name: str) -> str:
    smalls = round(seconds / small)
    per_large = large // small
    tail = f" {smalls % per_large} {small_name}" if smalls % per_large else ""
    return f"{smalls // per_large} {large_name}{tail}"


def count(number: int, noun: str) -> str:
    """
    >>> count(1, "device"), count(2_700, "sample")
    ('1 device', '2,700 samples')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def form_text(method: Mapping[str, Any]) -> str:
    """The paper's is not worth a word."""
    form = str(method.get("form", "paper"))
    return "" if form == "paper" else f"form {form}"


def end_text(schedule: Mapping[str, Any]) -> str:
    """
    >>> end_text({"rounds": 30, "updates": 1})
    'after 30 rounds or after 1 client update'
    """
    ends = {"rounds": "round", "updates": "client update", "virtual_seconds": "virtual second"}
    return " or ".join(f"after {count(schedule[key], noun)}" for key, noun in ends.items() if schedule.get(key))


def without_training(chance: float | None, majority: float | None) -> str:
    """The baselines of an accuracy, in brackets; empty if nothing is known.

    >>> without_training(0.1, 0.1135), without_training(None, 0.25), without_training(None, None)
    (' (chance 10.0 %, most frequent class 11.3 %)', ' (most frequent class 25.0 %)', '')
    """
    known = {"chance": chance, "most frequent class": majority}
    words = [f"{name} {percent(share)}" for name, share in known.items() if share is not None]
    return f" ({', '.join(words)})" if words else ""


def printable(text: object) -> str:
    """A client's words can hold anything; a terminal gets no control characters from it.

    >>> printable("pi\\x1b[31m")
    'pi?[31m'
    """
    return "".join(c if c.isprintable() else "?" for c in str(text))


def print_line(console: Console, line: str) -> None:
    """The line as it is: no markup in it, however long."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def rate_text(event: Rated) -> str:
    """The rates tried, and the one chosen."""
    if not event.devices:
        return f"{event.lr:g}: no device had enough samples to try others"
    tried = ", ".join(f"{rate:g}: {loss:.2f}" for rate, loss in zip(event.tried, event.losses, strict=True))
    return f"{event.lr:g}, found by {event.devices} devices (rate and held-out loss over the first: {tried})"
