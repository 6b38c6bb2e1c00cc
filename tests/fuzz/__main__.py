"""Many mutated updates against every trainer: no crash, no harmful acceptance.

python -m tests.fuzz --updates 100000 --seed 0
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

from tests.fuzz.arena import arenas, attempt

SHOWN = 10


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--updates", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=0, help="the first update's number; the same one repeats it")
    given = options.parse_args()
    titles, fates, bad = list(arenas()), Counter[str](), 0
    told = time.monotonic()
    for number in range(given.updates):
        title, seed = titles[number % len(titles)], given.seed + number // len(titles)
        try:
            how, verdict = attempt(title, seed)
        except Exception:
            fates["crashed"] += 1
            bad = _complain(bad, f"{title}, seed {seed}:\n{traceback.format_exc(limit=-3)}")
            continue
        fates[verdict.fate] += 1
        if verdict.harm:
            fates["harmful"] += 1
            bad = _complain(bad, f"{title}, seed {seed} ({how}): {verdict.harm}")
        if time.monotonic() - told > 2:
            told = time.monotonic()
            print(f"{number + 1:,} of {given.updates:,}: {dict(fates)}", file=sys.stderr, flush=True)
    print(f"{given.updates:,} updates against {len(titles)} servers: {dict(fates)}, seed {given.seed}")
    return 1 if bad else 0


def _complain(before: int, text: str) -> int:
    if before < SHOWN:
        print(text, flush=True)
    return before + 1


if __name__ == "__main__":
    sys.exit(main())
