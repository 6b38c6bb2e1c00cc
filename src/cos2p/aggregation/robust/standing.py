"""How much a device is believed: by whether its updates go where those of the fleet go.

What is remembered is evidence between pairs of devices: how their updates point to each other on the scalars that both
hold. One pair in one round says next to nothing (honest cosines are of the order of 0.01 while a model begins to
learn), but a device that lies does so against everybody and every time. The direction in which the fleet agrees most
is the leading eigenvector of the matrix of cosines: honest devices are on one side of it, those that undo what they do
on the other, those whose data nobody else has in the middle. No pair counts for more than what three quarters of the
pairs have: two devices that send the same would otherwise be the direction in which the fleet agrees most. So one
vector tells them apart long before any single cosine could, and a device is not blamed for having had the same blocks
as a dishonest one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import Any

import torch

KEPT = 0.9
"""The share of older evidence that stays, each round."""
FAINT = 0.15
"""Below this the fleet agrees no more than chance would have it; one update counts once, four twice."""
OPPOSED, FULL = -0.4, -0.2
"""A device's share in the common direction, 1 if all were alike: at the first it counts for nothing, from the second on
in full. An honest one whose data or submodel nobody else has is at zero: to have no part in it is no fault."""
AGAINST = 0.5
"""One that opposes the others does so in the sum over all of them too, and so many times as much as most agree."""
BALANCED = 0.1
"""The mean of all shares below which no side is the majority. Around an optimum honest updates cancel out, so that they
have two sides of the same weight, and nobody is wrong; two of five that lie together leave 0.2."""
CHANCE = 6.0
"""A device is opposed only if its cosines are so many times what those of random vectors of that length are."""
CLEAR = 0.5
"""Below this nobody is opposed who was seen in fewer than three rounds: at first honest devices whose data differ may
point to two sides."""
FEWEST = 3
"""Devices needed for a majority."""
STUCK, USUAL = 0.9, 0.4
"""A device's cosine with its own last updates from which on they count for nothing, where most devices' own are below
`USUAL`: what an honest one learns changes with the model that it gets."""
DEVICES = 64
"""Devices that are remembered, those heard last."""


@dataclass(frozen=True)
class Evidence:
    """Two devices compared on the scalars that both hold: x·y, x·x and y·y, and the number of scalars."""

    xy: float
    xx: float
    yy: float
    shared: float = math.inf

    def __add__(self, other: Evidence) -> Evidence:
        return Evidence(self.xy + other.xy, self.xx + other.xx, self.yy + other.yy, self.shared + other.shared)

    def faded(self) -> Evidence:
        return Evidence(KEPT * self.xy, KEPT * self.xx, KEPT * self.yy, KEPT * self.shared)

    def turned(self) -> Evidence:
        """Seen from the other device."""
        return Evidence(self.xy, self.yy, self.xx, self.shared)

    @property
    def cosine(self) -> float:
        both = self.xx * self.yy
        return self.xy / math.sqrt(both) if both > 0 else 0.0


@dataclass(frozen=True)
class Opinion:
    """The standing of a device."""

    trust: float = 1.0
    """How much of its update counts, 0 to 1."""
    agreement: float = 0.0
    """About its mean cosine with those who agree."""
    stuck: float = 0.0
    """Its cosine with its own last updates, if it is doubted for that."""


class Standing:
    """
    >>> standing = Standing()
    >>> honest, rogue = Evidence(0.4, 1, 1), Evidence(-0.4, 1, 1)
    >>> for _ in range(3):
    ...     standing.note({("a", "b"): honest, ("b", "c"): honest, ("a", "c"): honest,
    ...                    ("a", "rogue"): rogue, ("b", "rogue"): rogue, ("c", "rogue"): rogue})
    >>> opinions = standing.opinions()
    >>> [opinions[name].trust for name in ("a", "b", "c", "rogue")]
    [1.0, 1.0, 1.0, 0.0]
    """

    def __init__(self) -> None:
        self._pairs: dict[tuple[str, str], Evidence] = {}
        """By two names in order; of a device with itself, its updates of one round with those of the one before."""
        self._seen: dict[str, int] = {}
        """Rounds in which each device sent something that others held too, those heard last at the end."""
        self._strikes: dict[str, int] = {}
        """Updates in a row that pointed the other way."""

    def note(self, round_of: Mapping[tuple[str, str], Evidence]) -> None:
        """The evidence of one round."""
        self._pairs = {pair: evidence.faded() for pair, evidence in self._pairs.items()}
        for (a, b), found in round_of.items():
            pair, found = ((a, b), found) if a < b else ((b, a), found.turned())
            before = self._pairs.get(pair)
            self._pairs[pair] = found if before is None else before + found
        for name in dict.fromkeys(name for a, b in round_of if a != b for name in (a, b)):
            self._seen[name] = self._seen.pop(name, 0) + 1
        for name in list(self._seen)[:-DEVICES]:
            self.forget(name)

    def forget(self, name: str) -> None:
        self._seen.pop(name, None)
        self._strikes.pop(name, None)
        self._pairs = {pair: evidence for pair, evidence in self._pairs.items() if name not in pair}

    def opinions(self) -> dict[str, Opinion]:
        """The standing of every known device. While the fleet hardly agrees with itself all are believed."""
        names = sorted(self._seen)
        if len(names) < FEWEST:
            return {}
        place = {name: number for number, name in enumerate(names)}
        cosines, noise = torch.zeros(2, len(names), len(names), dtype=torch.float64)
        others = {pair: evidence for pair, evidence in self._pairs.items() if pair[0] != pair[1]}
        for (a, b), evidence in others.items():
            cosines[place[a], place[b]] = cosines[place[b], place[a]] = evidence.cosine
            noise[place[a], place[b]] = noise[place[b], place[a]] = 1 / max(evidence.shared, 1.0)
        most = usual_agreement(abs(evidence.cosine) for evidence in others.values())
        cosines = cosines.clamp(-most, most)
        values, vectors = torch.linalg.eigh(cosines)
        common, shares = float(values[-1]), vectors[:, -1] * math.sqrt(len(names))
        shares = shares if float(shares.sum()) >= 0 else -shares  # the majority is right
        by_chance = CHANCE * (noise @ shares.square()).sqrt()
        means = cosines.sum(1)
        against = (means < -AGAINST * means.median().clamp_min(0.0)).tolist()
        agree = float(shares.mean()) >= BALANCED
        found = {
            name: Opinion(
                self._trust(share)
                if agree
                and opposes
                and (common >= CLEAR or self._seen[name] >= FEWEST)
                and common * math.sqrt(self._seen[name]) >= FAINT
                and common * abs(share) >= chance
                else 1.0,
                common * share / len(names),
            )
            for name, share, chance, opposes in zip(names, shares.tolist(), by_chance.tolist(), against, strict=True)
        }
        return found | {name: Opinion(0.0, found[name].agreement, cosine) for name, cosine in self._stuck().items()}

    def _stuck(self) -> dict[str, float]:
        """Devices that send the same whatever model they get, where others do not, and how much it is the same."""
        own = {a: evidence for (a, b), evidence in self._pairs.items() if a == b and a in self._seen}
        if len(own) < FEWEST or median_low(evidence.cosine for evidence in own.values()) > USUAL:
            return {}
        return {
            name: evidence.cosine
            for name, evidence in own.items()
            if evidence.cosine > max(STUCK, CHANCE / math.sqrt(max(evidence.shared, 1.0)))
        }

    def _trust(self, share: float) -> float:
        return min(1.0, max(0.0, (share - OPPOSED) / (FULL - OPPOSED)))

    def strike(self, client: str, trust: float) -> int:
        """An update counted this much; returns how many in a row counted for nothing."""
        self._strikes[client] = self._strikes.get(client, 0) + 1 if trust == 0.0 else 0
        return self._strikes[client]

    def state(self) -> dict[str, Any]:
        pairs = [[a, b, e.xy, e.xx, e.yy, e.shared] for (a, b), e in self._pairs.items()]
        return {"pairs": pairs, "seen": list(self._seen.items()), "strikes": dict(self._strikes)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """An older checkpoint, which has no pairs, knows nothing of anybody."""
        self._pairs = {(a, b): Evidence(*rest) for a, b, *rest in state.get("pairs", ())}
        self._seen, self._strikes = dict(state.get("seen", ())), dict(state["strikes"])


def usual_agreement(sizes: Iterable[float]) -> float:
    """The upper quartile.

    >>> usual_agreement([0.02, 0.03, 0.01, 0.99])
    0.03
    """
    ordered = sorted(sizes)
    return ordered[(3 * len(ordered) - 1) // 4] if ordered else 0.0
