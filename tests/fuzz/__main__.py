"""Many mutated updates against a server of every kind: no crash, no harmful acceptance, no memory out of few bytes.
As many made-up messages against the lists of what a fleet's processes take from each other, where NVFlare is installed.

python -m tests.fuzz --updates 100000 --seed 0
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import count, islice

from tests.fuzz.arena import arena, kinds, mutated, play
from tests.fuzz.memory import growth

SHOWN = 10
ROOM = 8 * 2**20
"""What a server that looks at an update may take besides three times its bytes: its own state, and caches."""


RARE = 5
"""Servers where the others have answered do a round's work for every update: they get one for five of the others'."""


def turns(first: int) -> Iterator[tuple[str, int]]:
    """Whose turn it is, and the number of its update."""
    for seed in count(first):
        yield from ((title, seed) for title, kind in kinds().items() if not kind.company or seed % RARE == 0)


class Tally:
    def __init__(self) -> None:
        self.fates, self.bad, self.most = Counter[str](), 0, 0
        """`most`: largest growth of the process, in bytes."""

    def complain(self, what: str, text: str) -> None:
        self.fates[what] += 1
        self.bad += 1
        if self.bad <= SHOWN:
            print(text, flush=True)

    def attempt(self, title: str, seed: int) -> None:
        how, data = mutated(title, seed)
        place = f"{title}, seed {seed} ({how})"
        try:
            grown = growth(lambda: self._play(title, data, place))
        except Exception:
            self.complain("crashed", f"{place}:\n{traceback.format_exc(limit=-3)}")
            return
        self.most = max(self.most, grown)
        if grown > 3 * len(data) + ROOM:
            self.complain("too much memory", f"{place}: {len(data):,} bytes became {grown:,}")

    def _play(self, title: str, data: bytes, place: str) -> None:
        verdict = play(arena(title), data)
        self.fates[verdict.fate] += 1
        if verdict.harm:
            self.complain("harmful", f"{place}: {verdict.harm}")

    def __str__(self) -> str:
        return f"{dict(self.fates)}, grew by at most {self.most / 2**20:.1f} MiB"


def messages(first: int, number: int) -> int:
    """How many of the made-up messages did harm."""
    if find_spec("nvflare") is None:
        print("no messages: NVFlare is not installed")
        return 0
    from tests.fuzz.channels import attempt

    fates, bad = Counter[str](), 0
    for seed in range(first, first + number):
        fate, harm = attempt(seed)
        fates[fate] += 1
        bad += bool(harm)
        if harm and bad <= SHOWN:
            print(f"message {seed}: {harm}", flush=True)
    print(f"{number:,} messages: {dict(fates)}, {bad} harmful, seed {first}")
    return bad


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--updates", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=0, help="the first update's number; the same one repeats it")
    given = options.parse_args()
    harmful = messages(given.seed, given.updates)
    titles, tally = list(kinds()), Tally()
    for title in titles:
        play(arena(title), arena(title).honest)  # what is made once and kept
    reported = time.monotonic()
    for number, (title, seed) in enumerate(islice(turns(given.seed), given.updates)):
        tally.attempt(title, seed)
        if time.monotonic() - reported > 2:
            reported = time.monotonic()
            print(f"{number + 1:,} of {given.updates:,}: {tally}", file=sys.stderr, flush=True)
    print(f"{given.updates:,} updates against {len(titles)} servers: {tally}, seed {given.seed}")
    return 1 if tally.bad or harmful else 0


if __name__ == "__main__":
    sys.exit(main())
