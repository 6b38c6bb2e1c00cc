"""Who takes part: a set of clients from which any is drawn in a time that hardly grows with their number.

Clients are numbered in the order in which they first joined. A Fenwick tree over these numbers counts who is ready, so
that the k-th of them is found, and one is added or taken out, in about log₂ N steps; a draw is one hash of the run's
seed and the number of the draw, so a resumed run draws on as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cos2p.seeding import derive_seed

CANDIDATES = 8
"""How many are drawn where the best of them is wanted: looking at all would cost as much as there are."""

Preference = Callable[[str], float]
"""How much a client's next task would be worth; larger is better."""


class NumberedSet:
    """A set of small whole numbers that knows its k-th smallest.

    >>> numbers = NumberedSet()
    >>> for number in (5, 2, 9): numbers.add(number)
    >>> numbers.discard(2)
    >>> len(numbers), numbers.at(0), numbers.at(1), list(numbers)
    (2, 5, 9, [5, 9])
    """

    def __init__(self) -> None:
        self._tree = [0]  # _tree[i] counts the members in (i − lowbit(i), i], numbered from 1
        self._member = bytearray()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: int) -> bool:
        return number < len(self._member) and bool(self._member[number])

    def __iter__(self) -> Iterator[int]:
        return (number for number, inside in enumerate(self._member) if inside)

    def add(self, number: int) -> None:
        while number >= len(self._member):
            self._grow()
        if not self._member[number]:
            self._member[number] = 1
            self._change(number, 1)

    def discard(self, number: int) -> None:
        if number in self:
            self._member[number] = 0
            self._change(number, -1)

    def at(self, k: int) -> int:
        """The k-th smallest member, from 0."""
        if not 0 <= k < self._count:
            raise IndexError(f"there are {self._count} members, not {k + 1}")
        place, left = 0, k + 1
        step = 1 << (len(self._tree) - 1).bit_length()
        while step:
            further = place + step
            if further < len(self._tree) and self._tree[further] < left:
                place, left = further, left - self._tree[further]
            step >>= 1
        return place

    def _grow(self) -> None:
        self._member.append(0)
        place = len(self._tree)
        total, lower = 0, place - 1
        while lower > place - (place & -place):
            total += self._tree[lower]
            lower -= lower & -lower
        self._tree.append(total)

    def _change(self, number: int, by: int) -> None:
        self._count += by
        place = number + 1
        while place < len(self._tree):
            self._tree[place] += by
            place += place & -place


class Draw:
    """Picks from a `NumberedSet`, reproducibly: the draws are numbered through the run."""

    def __init__(self, seed: int, drawn: int = 0) -> None:
        self.seed, self.drawn = seed, drawn

    def one(self, ready: NumberedSet) -> int:
        """Any member, each as likely as the others."""
        self.drawn += 1
        return ready.at(derive_seed(self.seed, "participation", self.drawn) % len(ready))

    def best(self, ready: NumberedSet, worth: Callable[[int], float]) -> int:
        """The best of a few drawn ones; of equals the one drawn first."""
        few = [self.one(ready) for _ in range(min(CANDIDATES, len(ready)))]
        return max(few, key=worth)
