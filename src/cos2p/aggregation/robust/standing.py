"""How much a device is believed: by how far its updates point where those of the others do.

The agreement of an update is the cosine between it and what the others of its round say of the same scalars; where
nobody else does, what the model's steps of late were (the second opinion of a segment with a single holder). A device's
standing is a running mean of it. Honest devices agree a little, all about equally; a flipped sign disagrees, noise and
constants are at zero. So the measure is the fleet's own median: from half of it on a device counts in full, below it
less, at zero and below not at all. While the fleet hardly agrees with itself nobody is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

NEWEST = 0.4
"""Weight of the newest update in the running mean."""
FAINT = 0.02
"""A median agreement below this says nothing."""
FEWEST = 3
"""Devices needed for a median."""


class Standing:
    def __init__(self) -> None:
        self._agreement: dict[str, float] = {}
        self._strikes: dict[str, int] = {}
        """Updates in a row that counted for nothing."""

    def note(self, client: str, agreement: float) -> None:
        """An update of this device had this cosine."""
        before = self._agreement.get(client)
        self._agreement[client] = agreement if before is None else (1 - NEWEST) * before + NEWEST * agreement

    def trust(self, client: str) -> float:
        """How much of an update of this device counts, 0 to 1.

        >>> standing = Standing()
        >>> for client, cosine in {"a": 0.4, "b": 0.3, "c": 0.2, "liar": -0.4, "half": 0.05}.items():
        ...     standing.note(client, cosine)
        >>> [standing.trust(client) for client in ("a", "c", "half", "liar", "new")]
        [1.0, 1.0, 0.5, 0.0, 1.0]
        """
        own = self._agreement.get(client)
        usual = median(self._agreement.values()) if len(self._agreement) >= FEWEST else 0.0
        if own is None or usual < FAINT:
            return 1.0
        return min(1.0, max(0.0, own / (usual / 2)))

    def agreement(self, client: str) -> float:
        return self._agreement.get(client, 0.0)

    def strike(self, client: str, trust: float) -> int:
        """An update counted this much; returns how many in a row counted for nothing and pointed the other way.

        A device of a much smaller submodel may hardly agree with anybody, and is honest.
        """
        opposed = trust == 0.0 and self.agreement(client) < -FAINT
        self._strikes[client] = self._strikes.get(client, 0) + 1 if opposed else 0
        return self._strikes[client]

    def state(self) -> dict[str, Any]:
        return {"agreement": dict(self._agreement), "strikes": dict(self._strikes)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._agreement, self._strikes = dict(state["agreement"]), dict(state["strikes"])
