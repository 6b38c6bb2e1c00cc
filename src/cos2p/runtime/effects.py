"""What a server wants done: its driver (a simulation, a fleet) carries it out."""

from __future__ import annotations

from dataclasses import dataclass

from cos2p.messages import Order
from cos2p.tracking.event_kinds import Event


@dataclass(frozen=True)
class Send:
    """Give the client the task of this order (`Server.task` makes it)."""

    order: Order


@dataclass(frozen=True)
class Timer:
    timer: str
    seconds: float


@dataclass(frozen=True)
class NewVersion:
    """A round closed: evaluate it if it is its turn."""

    version: int


@dataclass(frozen=True)
class Done:
    reason: str


Effect = Send | Timer | Event | NewVersion | Done
