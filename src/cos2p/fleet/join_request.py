"""What a client says of itself when it joins. Without torch: a device's executor needs it too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cos2p.errors import UpdateRefused

MOST_SAMPLES = 2**31
"""More than any device has; a larger claim is nonsense."""


MOST_TOKENS = 2**22
"""More than any vocabulary has; a bit each."""


@dataclass(frozen=True)
class JoinRequest:
    """What a client says of itself."""

    samples: int
    test_samples: int
    memory: int = 0
    """Bytes for training; 0: as the recipe says."""
    flops: float = 0.0
    """Measured by `cos2p profile`; 0: as the recipe says."""
    rows: str = ""
    """Which tokens occur in its texts, one bit each, in hex; empty: of images, and where tables stay whole."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

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
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise UpdateRefused(f"a device joins with its samples and its memory: {error!r}") from None
        if not (1 <= facts.samples <= MOST_SAMPLES and 0 <= facts.test_samples <= MOST_SAMPLES):
            raise UpdateRefused(f"{facts.samples} training and {facts.test_samples} test samples cannot be")
        if not (0 <= facts.memory < 2**60 and 0 <= facts.flops < 1e24):
            raise UpdateRefused(f"{facts.memory} bytes and {facts.flops} FLOP/s cannot be")
        if len(facts.rows) > MOST_TOKENS // 4 or len(facts.rows) % 2 or set(facts.rows) - set("0123456789abcdef"):
            raise UpdateRefused("a device names the tokens of its texts as bits, in hex")
        return facts
