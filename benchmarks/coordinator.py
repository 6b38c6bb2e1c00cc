"""How many events a second the coordinator decides, against the number of devices. No tensors, no training: sleep only.

    python -m benchmarks.coordinator

Devices answer after a random time, one in twenty events is one that leaves and comes back. Processor time, on one core.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import json
import random
import time
import tracemalloc

from cos2p.aggregation.triggers import Trigger
from cos2p.server.coordinator import Coordinator
from cos2p.server.protocol import (
    ClientJoined,
    ClientLeft,
    Decision,
    Dispatch,
    News,
    StartTimer,
    TimerFired,
    UpdateArrived,
)
from cos2p.server.rules import Rules


class Play:
    """A driver with a heap instead of a network."""

    def __init__(self, devices: int, clients_per_round: float | None) -> None:
        self.names = [f"device-{number}" for number in range(devices)]
        trigger = Trigger.semi_asynchronous(0.5, 1.0)
        rules = Rules(trigger, "at-once", rounds=10**9, clients_per_round=clients_per_round)
        self.coordinator = Coordinator(rules, self.names)
        self.dice, self.now, self.planned = random.Random(0), 0.0, 0
        self.agenda: list[tuple[float, int, News]] = []

    def plan(self, seconds: float, news: News) -> None:
        heapq.heappush(self.agenda, (self.now + seconds, self.planned, news))
        self.planned += 1

    def carry_out(self, actions: list[Decision]) -> None:
        for action in actions:
            if isinstance(action, Dispatch):
                self.plan(10 * self.dice.random(), UpdateArrived(action.client, action.task))
            elif isinstance(action, StartTimer):
                self.plan(action.seconds, TimerFired(action.timer))

    def join(self) -> None:
        for name in self.names:
            self.carry_out(self.coordinator.handle(ClientJoined(name)))

    def event(self) -> None:
        if self.dice.random() < 0.05:
            name = self.dice.choice(self.names)
            self.carry_out(self.coordinator.handle(ClientLeft(name)))
            self.carry_out(self.coordinator.handle(ClientJoined(name)))
            return
        self.now, _, news = heapq.heappop(self.agenda)
        self.carry_out(self.coordinator.handle(news))


def memory(devices: int, clients_per_round: float | None = None) -> int:
    """Bytes that the coordinator holds, without names, when all have joined and those who take part are at work."""
    names = [f"device-{number}" for number in range(devices)]
    rules = Rules(Trigger.semi_asynchronous(0.5, 1.0), "at-once", rounds=10**9, clients_per_round=clients_per_round)
    gc.collect()
    tracemalloc.start()
    try:
        coordinator = Coordinator(rules, names)
        for name in names:
            coordinator.handle(ClientJoined(name))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--devices", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000])
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--per-round", type=float, nargs="*", default=[1000])
    chosen = parser.parse_args()
    print("| devices | take part | events a second | memory, bytes a device | checkpoint, bytes a device |")
    print("|---|---|---|---|---|")
    largest = max(chosen.devices)
    for devices, some in [*((n, None) for n in chosen.devices), *((largest, share) for share in chosen.per_round)]:
        play = Play(devices, some)
        play.join()
        began = time.process_time()
        for _ in range(chosen.events):
            play.event()
        rate = chosen.events / (time.process_time() - began)
        size = len(json.dumps(play.coordinator.to_dict())) / devices
        held, who = memory(devices, some) / devices, "all" if some is None else f"{some:g}"
        print(f"| {devices:,} | {who} | {rate:,.0f} | {held:.0f} | {size:.1f} |", flush=True)


if __name__ == "__main__":
    main()
