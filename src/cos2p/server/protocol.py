"""News for the server, and effects: what it wants done.

ClientJoined · ClientLeft · UpdateArrived · UpdateRejected · TaskFailed · TimerFired · Enough · Stop
                         │
                Coordinator.handle             names and numbers only
                         ▼
Dispatch · Merge · Aggregate                   for the server, which has the tensors
StartTimer · Finish · events                   for the driver, as they are
                         │
                   Server.handle
                         ▼
Send · StartTimer · Finish · events            carried out by the driver, in the order given
"""

from __future__ import annotations

from dataclasses import dataclass

from cos2p.messages import Order
from cos2p.tracking.event_kinds import Event

# ---------------------------------------------------------------- news


@dataclass(frozen=True)
class ClientJoined:
    """The client is here and has no task in hand: at the start, late, back after an absence, or restarted."""

    client: str


@dataclass(frozen=True)
class ClientLeft:
    """The client is known to be gone. Should the answer to its task come all the same, it is welcome."""

    client: str


@dataclass(frozen=True)
class UpdateArrived:
    """An update came in and passed every check."""

    client: str
    task: str


@dataclass(frozen=True)
class UpdateRejected:
    """An update came in and did not pass; the model is unchanged."""

    client: str
    task: str
    reason: str


@dataclass(frozen=True)
class TaskFailed:
    """The task came to nothing on the device: training failed, or the task was lost."""

    client: str
    task: str
    reason: str


@dataclass(frozen=True)
class TimerFired:
    """The seconds of an earlier `StartTimer` are over. Nobody needs to cancel a timer: a late one is ignored."""

    timer: str


@dataclass(frozen=True)
class Stop:
    """End the run now (nobody is left, a budget is spent): aggregate what is buffered, then finish."""

    reason: str


@dataclass(frozen=True)
class Enough:
    """Training is over (early stopping, time is up). A run that ends with a round of its own kind still has it, when
    those who are at work have answered; any other one ends now, as with `Stop`."""

    reason: str


News = ClientJoined | ClientLeft | UpdateArrived | UpdateRejected | TaskFailed | TimerFired | Stop | Enough

# ---------------------------------------------------------------- effects


@dataclass(frozen=True)
class Dispatch:
    """Give the client a task cut from this version of the model. It is open until the client answers or gives it up."""

    client: str
    task: str
    """Name of the task, unique in the run; the answer must carry it."""
    version: int
    cycle: int
    """Updates accepted from this client so far: moves the rolling window, so that a retry keeps its window."""
    attempt: int
    """Tasks given to this client before: makes every try's randomness its own."""


@dataclass(frozen=True)
class Merge:
    """The update that just arrived counts."""

    client: str
    task: str
    version: int
    """The version the task was cut from."""
    staleness: int
    """τ: aggregations between the task's dispatch and now."""


@dataclass(frozen=True)
class Aggregate:
    """Close the round: turn the running sums into the new version of the model."""

    round: int
    """Number of the round that ends, from 0."""
    version: int
    """Number of the model it makes: `round + 1`."""
    clients: tuple[str, ...]
    """Clients that reported, in the order of their first update."""
    updates: int
    """How many updates were merged; more than `len(clients)` when a client reported twice."""


@dataclass(frozen=True)
class Send:
    """Give the client the task of this order (`Orders.task` makes it)."""

    order: Order


@dataclass(frozen=True)
class StartTimer:
    """Send `TimerFired(timer)` after this many seconds."""

    timer: str
    seconds: float


@dataclass(frozen=True)
class Finish:
    """The run is over; no news changes anything any more."""

    reason: str


Decision = Dispatch | Merge | Aggregate | StartTimer | Finish | Event
"""The coordinator returns these."""
Effect = Send | StartTimer | Finish | Event
"""The server returns these."""
