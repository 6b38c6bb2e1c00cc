"""Many names in few characters: a list of clients as places in a roster that both sides have.

Clients mostly join in the order in which the recipe lists them, so a hundred thousand names are one pair of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

Encoded = list[list[int] | str]
"""Runs of the roster as [first, end), and names that are not in it."""


def encode_roster(names: Sequence[str], roster: Sequence[str]) -> Encoded:
    """
    >>> encode_roster(["b", "c", "x", "a"], ["a", "b", "c"])
    [[1, 3], 'x', [0, 1]]
    """
    places = {name: place for place, name in enumerate(roster)}
    encoded: Encoded = []
    for name in names:
        place = places.get(name)
        last = encoded[-1] if encoded else None
        if place is None:
            encoded.append(name)
        elif isinstance(last, list) and last[1] == place:
            last[1] = place + 1
        else:
            encoded.append([place, place + 1])
    return encoded


def decode_roster(encoded: Encoded, roster: Sequence[str]) -> list[str]:
    """
    >>> decode_roster([[1, 3], 'x', [0, 1]], ["a", "b", "c"])
    ['b', 'c', 'x', 'a']
    """
    names: list[str] = []
    for entry in encoded:
        names += [entry] if isinstance(entry, str) else roster[entry[0] : entry[1]]
    return names
