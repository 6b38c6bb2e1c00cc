"""A run as the simulator would tell it: four clients, one of them slow, one round every 10 virtual seconds."""

from __future__ import annotations

from collections.abc import Iterator

from cos2p.tracking.event_kinds import Event
from tests.events import event

CLIENTS = ("orin-1", "orin-2", "orin-3", "nx-1")
SLOW = "nx-1"


def started(rounds: int | None = None, updates: int | None = None) -> Event:
    return event("started", title="Co-S²P", rounds=rounds, updates=updates, devices={name: {} for name in CLIENTS})


def merged(client: str, t: float, staleness: int = 0, top1: float = 0.5, samples: int = 10) -> Event:
    report = {"loss": 0.75, "local_samples": samples, "local_top1": top1}
    return event("merged", t, client=client, window=[2, 4], staleness=staleness, report=report)


def evaluated(version: int, t: float, top1: float) -> Event:
    by_exit = {"1": {"top1": 0.01}, "8": {"top1": top1}, "12": {"top1": top1}}
    return event("evaluated", t, version=version, validation=by_exit, test={"12": {"top1": 0.99}})


def run_events(rounds: int) -> Iterator[Event]:
    """The fast three report in every round; the slow one has its first task to the end."""
    yield started(rounds=rounds)
    for client in CLIENTS:
        yield event("dispatched", client=client, task=f"{client}#0", seconds={})
    for version in range(1, rounds + 1):
        t = 10.0 * version
        for client in CLIENTS[:3]:
            yield event("arrived", t, client=client, task=f"{client}#{version - 1}")
            yield merged(client, t)
        yield event("aggregated", t, version=version)
        yield evaluated(version, t, top1=0.1 + 0.5 * version / rounds)
        for client in CLIENTS[:3]:
            yield event("dispatched", t, client=client, task=f"{client}#{version}", version=version, seconds={})
    yield event("finished", 10.0 * rounds, validation={"12": {"top1": 0.6}})


class Clock:
    """A wall clock that the test winds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
