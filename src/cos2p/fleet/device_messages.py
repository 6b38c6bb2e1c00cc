"""What a device's process says to the server, as values: a head is one of these and nothing else.

Without torch. `disclosure` explains every field, and a test fails when one has no explanation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Hello:
    """A process of the device begins, and asks for the run's recipe."""

    session: str
    clock: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Heartbeat:
    """It is alive."""

    session: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class CannotTakePart:
    """Instead of `ready`."""

    session: str
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Answer:
    """How a task ended: the update was `sent`, or there is none."""

    sent: Mapping[str, Any] | None = None
    failure: str = ""
    out_of_memory: bool = False
    cache_miss: bool = False
    numbers: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Without what is empty."""
        return {name: value for name, value in asdict(self).items() if value}
