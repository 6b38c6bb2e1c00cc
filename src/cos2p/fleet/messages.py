"""Messages of a device's process to the server, as values: a head is one of these and nothing else.

Without torch: a device's executor needs it too. `disclosure` explains every field, and a test fails when one has no
explanation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from cos2p.errors import UpdateRefused

MOST_SAMPLES = 2**31
"""More than any device has; a larger claim is nonsense."""
MOST_TOKENS = 2**22
"""More than any vocabulary has; a bit each."""

MOST_PARTS = 2**12
"""More than any model has blocks."""


@dataclass(frozen=True)
class Said:
    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Hello(Said):
    """A process of the device begins, and asks for the run's recipe."""

    session: str
    clock: float


@dataclass(frozen=True)
class Heartbeat(Said):
    """It is alive."""

    session: str


@dataclass(frozen=True)
class CannotTakePart(Said):
    """Instead of `ready`."""

    session: str
    reason: str


@dataclass(frozen=True)
class Answer(Said):
    """How a task ended: the update was `sent`, or there is none. What is empty is left out."""

    sent: Mapping[str, Any] | None = None
    failure: str = ""
    out_of_memory: bool = False
    cache_miss: bool = False
    """It does not have the frozen parts that the task counts on."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Seconds and bytes."""

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in super().to_dict().items() if value}


@dataclass(frozen=True)
class JoinRequest(Said):
    """A device's own description when its data are loaded."""

    samples: int
    test_samples: int
    memory: int = 0
    """Bytes for training; 0: as the recipe says."""
    flops: float = 0.0
    """Measured by `cos2p profile`; 0: as the recipe says."""
    rows: str = ""
    """Which tokens occur in its texts, one bit each, in hex; empty: of images, and where tables stay whole."""
    base: Mapping[str, str] = field(default_factory=dict)
    """The frozen parts of the model that it has in files of its own, by the hash of their bytes."""
    texts: tuple[int, int] = (0, 0)
    """Tokens of its longest text, and of all that it trains on; 0: of images, and of private runs."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> JoinRequest:
        """UpdateRefused for anything but sane numbers: they come from outside."""
        try:
            facts = cls(
                int(values["samples"]),
                int(values["test_samples"]),
                int(values.get("memory", 0)),
                float(values.get("flops", 0.0)),
                str(values.get("rows", "")),
                {str(part): str(name) for part, name in dict(values.get("base", {})).items()},
                _pair(values.get("texts", (0, 0))),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise UpdateRefused(f"a device joins with its samples and its memory: {error!r}") from None
        if not (1 <= facts.samples <= MOST_SAMPLES and 0 <= facts.test_samples <= MOST_SAMPLES):
            raise UpdateRefused(f"{facts.samples} training and {facts.test_samples} test samples cannot be")
        if not (0 <= facts.memory < 2**60 and 0 <= facts.flops < 1e24):
            raise UpdateRefused(f"{facts.memory} bytes and {facts.flops} FLOP/s cannot be")
        longest, every = facts.texts
        if not (0 <= longest <= every <= longest * facts.samples <= MOST_SAMPLES * MOST_TOKENS):
            raise UpdateRefused(f"{every} tokens in {facts.samples} texts of at most {longest} cannot be")
        if len(facts.rows) > MOST_TOKENS // 4 or len(facts.rows) % 2 or set(facts.rows) - set("0123456789abcdef"):
            raise UpdateRefused("a device names the tokens of its texts as bits, in hex")
        if len(facts.base) > MOST_PARTS or any(max(map(len, entry)) > 64 for entry in facts.base.items()):
            raise UpdateRefused("a device names the parts of its own base by their hashes")
        return facts


def _pair(values: Any) -> tuple[int, int]:
    first, second = values
    return int(first), int(second)
