"""Clients as the coordinator knows them, how many are what, and their names in a checkpoint."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cos2p.server.protocol import Dispatch


@dataclass(slots=True)
class ClientRecord:
    name: str
    number: int
    """In the order of first joining, from 0: who of several comes first."""
    here: bool = True
    """Joined, and not known to be gone."""
    excluded: bool = False
    overdue: bool = False
    """Its open task has passed the deadline."""
    cycle: int = 0
    attempts: int = 0
    fruitless: int = 0
    """Tasks since its last good update that failed, were refused or were given up."""
    failures: int = 0
    """Those of them that failed or were refused since it joined."""
    ticket: Dispatch | None = None
    counted: int = 0
    """As what the census has counted it."""

    @property
    def gets_tasks(self) -> bool:
        return self.here and not self.excluded

    @property
    def untouched(self) -> bool:
        """It was never given anything: all there is to know is whether it is here."""
        return self.attempts == 0 and not self.excluded

    def close_ticket(self, *, good: bool) -> None:
        self.ticket = None
        self.overdue = False
        self.fruitless = 0 if good else self.fruitless + 1
        if good:
            self.failures = 0

    def restore(self, values: Sequence[int], opened: Sequence[Any] | None) -> None:
        for field, value in zip(STORED, values, strict=True):
            setattr(self, field, bool(value) if field in FLAGS else value)
        self.ticket = None if opened is None else Dispatch(self.name, *opened)

    def to_row(self) -> list[Any]:
        """Its number, what `STORED` names, and its open task."""
        ticket = self.ticket
        opened = None if ticket is None else [ticket.task, ticket.version, ticket.cycle, ticket.attempt]
        return [self.number, *(int(getattr(self, name)) for name in STORED), opened]


STORED = ("here", "excluded", "overdue", "cycle", "attempts", "fruitless", "failures")
FLAGS = STORED[:3]


# A client counts as these; bits, since one may be several things.
PRESENT, BUSY, WAITED, READY, HOPEFUL, NEW = 1, 2, 4, 8, 16, 32


class Census:
    """How many clients are what. Kept along, client by client, so that no decision has to look at all of them."""

    def __init__(self) -> None:
        self.present = 0
        """Here, and not excluded."""
        self.busy = 0
        """Those of them at work and not overdue."""
        self.waited = 0
        """Those of them with a record that makes their answer likely."""
        self.waited_new = 0
        """Those of them without a report in this round."""
        self.ready: list[int] = []
        """Numbers of those who are present, without a task, and not waiting for the next version; ascending."""
        self.hopeful = 0
        """The ready ones with a record that makes an answer likely."""
        self.hopeful_new = 0

    def count(self, client: ClientRecord, kind: int) -> None:
        before = client.counted
        if kind == before:
            return
        client.counted = kind
        self.present += _step(before, kind, PRESENT)
        self.busy += _step(before, kind, BUSY)
        self.waited += _step(before, kind, WAITED)
        self.waited_new += _step(before, kind, WAITED | NEW)
        self.hopeful += _step(before, kind, HOPEFUL)
        self.hopeful_new += _step(before, kind, HOPEFUL | NEW)
        if _step(before, kind, READY) > 0:
            insort(self.ready, client.number)
        elif _step(before, kind, READY) < 0:
            del self.ready[bisect_left(self.ready, client.number)]


def _step(before: int, now: int, bits: int) -> int:
    return (now & bits == bits) - (before & bits == bits)


# ---------------------------------------------------------------- many names in few characters

Encoded = list[list[int] | str]
"""Runs of the roster as [first, end), and names that are not in it."""


def encode_roster(names: Sequence[str], roster: Sequence[str]) -> Encoded:
    """Clients mostly join in the order of the recipe, so a hundred thousand names are one pair of numbers.

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
