"""Kinds of devices: names that differ in their number alone are of one kind, and a large fleet is told kind by kind."""

from __future__ import annotations

import re
from collections.abc import Mapping

MOST = 24
"""Kinds that are told apart; of more, devices are of one kind if they train the same share of the model."""

_NUMBER = re.compile(r"[-_ .#]?\d+$")


def tiers(rates: Mapping[str, float | None]) -> dict[str, list[str]]:
    """Kind → its devices, both in the order of the fleet; `rates` has R of each device by name.

    >>> tiers({"pi-1": 0.25, "orin-1": 0.5, "pi-2": 0.25})
    {'pi': ['pi-1', 'pi-2'], 'orin': ['orin-1']}
    """
    named = _grouped({name: _NUMBER.sub("", name) or name for name in rates})
    if len(named) <= MOST:
        return named
    by_rate = _grouped({name: "R not known" if rate is None else f"R {rate:.3g}" for name, rate in rates.items()})
    return by_rate if len(by_rate) <= MOST else {"all": list(rates)}


def _grouped(kinds: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, kind in kinds.items():
        found.setdefault(kind, []).append(name)
    return found
