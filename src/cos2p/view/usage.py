"""How well the fleet is used: tasks, bytes, busy seconds, memory, staleness by device, and RU by round."""

from __future__ import annotations

from collections import Counter
from typing import Any

from cos2p.view import model
from cos2p.view.curves import rounded
from cos2p.view.log import Event
from cos2p.view.roster import Roster


class Usage:
    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self.down: Counter[int] = Counter()
        self.up: Counter[int] = Counter()
        self.tasks: Counter[int] = Counter()
        self.updates: Counter[int] = Counter()
        self.refused: Counter[int] = Counter()
        self.failed: Counter[int] = Counter()
        self._tau: Counter[int] = Counter()
        self._weight: dict[int, tuple[int, float]] = {}
        self._predicted: dict[int, int] = {}
        self._measured: dict[int, int] = {}
        self._since: dict[int, tuple[str, float]] = {}
        """Client → the task in hand, and since when it is busy with it in this round."""
        self._busy: Counter[int] = Counter()
        self._round_busy: dict[int, float] = {}
        self._here: set[int] = set()
        self._ru: list[float] = []

    def feed(self, event: Event) -> None:
        handler = getattr(self, f"_on_{event['kind']}", None)
        if handler is not None and "client" in event:
            handler(self._roster.index(event["client"]), event)

    # ------------------------------------------------------------ what the events mean

    def _on_joined(self, client: int, event: Event) -> None:
        self._rest(client, event["t"])
        self._here.add(client)

    def _on_dispatched(self, client: int, event: Event) -> None:
        self._rest(client, event["t"])
        self.tasks[client] += 1
        self.down[client] += event["bytes"]
        self._since[client] = (event["task"], event["t"])
        if "peak_memory" in event:
            self._predicted[client] = max(event["peak_memory"], self._predicted.get(client, 0))

    def _on_arrived(self, client: int, event: Event) -> None:
        self._rest(client, event["t"], event["task"])
        self.up[client] += event["bytes"]
        self._measure(client, event)

    def _on_failed(self, client: int, event: Event) -> None:
        self._rest(client, event["t"], event["task"])
        self.failed[client] += 1
        self._measure(client, event)

    def _on_lost(self, client: int, event: Event) -> None:
        self._rest(client, event["t"])
        self.failed[client] += 1

    def _on_left(self, client: int, event: Event) -> None:
        if client in self._since:
            self.failed[client] += 1
        self._rest(client, event["t"])
        self._here.discard(client)

    _on_died = _on_left

    def _on_merged(self, client: int, event: Event) -> None:
        self.updates[client] += 1
        self._tau[client] += event["staleness"]

    def _on_refused(self, client: int, event: Event) -> None:
        self._rest(client, event["t"], event["task"])
        self.refused[client] += 1

    def _measure(self, client: int, event: Event) -> None:
        peak = rounded((event.get("measured") or {}).get("peak"), 0)
        if peak:
            self._measured[client] = max(int(peak), self._measured.get(client, 0))

    def _rest(self, client: int, now: float, task: str | None = None) -> None:
        """The task is over, whichever way; with `task`, only if it is the one in hand."""
        held = self._since.get(client)
        if held is not None and task in (None, held[0]):
            del self._since[client]
            self._round_busy[client] = self._round_busy.get(client, 0.0) + now - held[1]

    # ------------------------------------------------------------ rounds

    def close_round(self, now: float) -> float | None:
        """RU of the round: the busy seconds of those present, against as many as the busiest had."""
        for client, (task, since) in self._since.items():
            self._round_busy[client] = self._round_busy.get(client, 0.0) + now - since
            self._since[client] = (task, now)
        busy = self._round_busy
        for client, seconds in busy.items():
            self._busy[client] += seconds  # type: ignore[assignment]
        present = self._here | {client for client, seconds in busy.items() if seconds > 0}
        longest = max(busy.values(), default=0.0)
        self._round_busy = {}
        if longest <= 0:
            return None
        ru = sum(busy.values()) / (len(present) * longest)
        self._ru.append(ru)
        return ru

    def weigh(self, pairs: list[tuple[int, float]]) -> None:
        for client, weight in pairs:
            count, total = self._weight.get(client, (0, 0.0))
            self._weight[client] = (count + 1, total + weight)

    @property
    def ru(self) -> float | None:
        return sum(self._ru) / len(self._ru) if self._ru else None

    # ------------------------------------------------------------ the document

    def devices(self, now: float, top1: list[float | None]) -> list[model.Device]:
        return [self._device(client, now, top1[client]) for client in range(len(self._roster))]

    def _device(self, client: int, now: float, top1: float | None) -> model.Device:
        facts: dict[str, Any] = self._roster.facts[client]
        count, total = self._weight.get(client, (0, 0.0))
        updates = self.updates[client]
        return {
            "name": self._roster.names[client],
            "rate": facts.get("rate"),
            "memory": facts.get("memory"),
            "predicted": self._predicted.get(client),
            "measured": self._measured.get(client),
            "samples": facts.get("samples"),
            "batch": facts.get("batch"),
            "flops": facts.get("flops"),
            "bytes_up": self.up[client],
            "bytes_down": self.down[client],
            "tasks": self.tasks[client],
            "updates": updates,
            "refused": self.refused[client],
            "failed": self.failed[client],
            "staleness": rounded(self._tau[client] / updates, 2) if updates else None,
            "busy": round(min(1.0, self._busy_until(client, now) / now), 4) if now > 0 else 0.0,
            "weight": rounded(total / count) if count else None,
            "top1": top1,
        }

    def _busy_until(self, client: int, now: float) -> float:
        since = self._since.get(client)
        return self._busy[client] + self._round_busy.get(client, 0.0) + (now - since[1] if since else 0.0)
