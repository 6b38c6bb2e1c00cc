"""The devices of a run: their numbers, their table with the mean weight of their updates, and their troubles."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from cos2p.tracking.event_kinds import Event, Joined, Lowered, Started
from cos2p.tracking.figure_parts import DeviceFigures, tiers
from cos2p.tracking.figures import RunFigures
from cos2p.view.curves import rounded


@dataclass
class Roster:
    """The devices in the order in which the log names them: a name has the same number for the whole run."""

    names: list[str] = field(default_factory=list)
    _index: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    def index(self, name: object) -> int:
        """The device's number; a new one if the name is new."""
        text = str(name)
        if text not in self._index:
            self._index[text] = len(self.names)
            self.names.append(text)
        return self._index[text]

    def find(self, name: object) -> int:
        """The device's number, −1 if there is none of this name."""
        return self._index.get(str(name), -1)

    def feed(self, event: Event) -> None:
        if isinstance(event, Started):
            for name in event.devices:
                self.index(name)
        elif isinstance(event, Joined | Lowered):  # on a fleet, anybody may come later
            self.index(event.client)


FACTS = (
    "rate", "memory", "predicted", "measured", "samples", "batch", "flops", "plan", "why", "bytes_up", "bytes_down",
    "tasks", "updates", "refused",
)  # fmt: skip


class DevicesBuilder:
    def __init__(self) -> None:
        self._weights: dict[int, tuple[int, float]] = {}
        """By device: updates with a weight, and their sum."""

    def weigh(self, pairs: list[tuple[int, float]]) -> None:
        for device, weight in pairs:
            count, total = self._weights.get(device, (0, 0.0))
            self._weights[device] = (count + 1, total + weight)

    def document(self, names: list[str], run: RunFigures) -> list[dict[str, Any]]:
        known = {name: run.devices.get(name) or DeviceFigures() for name in names}
        kinds = tiers({name: device.rate for name, device in known.items()})
        group = {name: kind for kind, members in kinds.items() for name in members}
        return [self._row(number, name, group[name], known[name], run) for number, name in enumerate(names)]

    def _row(self, number: int, name: str, group: str, device: DeviceFigures, run: RunFigures) -> dict[str, Any]:
        count, total = self._weights.get(number, (0, 0.0))
        busy = round(min(1.0, (device.busy + device.worked(run.now)) / run.now), 4) if run.now > 0 else 0.0
        return {
            "name": name,
            "group": group,  # its kind: names that differ in their number alone
            **{fact: getattr(device, fact) for fact in FACTS},
            "link": None if device.link is None else [round(rate) for rate in device.link],
            "failed": device.failed + device.lost,
            "doubted": device.doubted,
            # Mean τ of its merged updates; below, `weight` is their mean γ̃.
            "staleness": rounded(device.staleness / device.updates, 2) if device.updates else None,
            "busy": busy,
            "weight": rounded(total / count) if count else None,
            "top1": rounded(run.own.get(name, {}).get("top1")),
        }


# ---------------------------------------------------------------- troubles

KINDS = (
    "refused", "dropped", "failed", "lost", "left", "excluded", "doubted", "lowered", "unfit", "unevaluated",
)  # fmt: skip
LISTED = 1000
REASON_CHARACTERS = 600
"""A client writes its own reasons; nobody reads more of one than this."""
NAME_CHARACTERS = 200


class TroublesBuilder:
    """Troubles with their reasons: updates not let in, tasks that came to nothing, devices that went away."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._last: deque[Event] = deque(maxlen=LISTED)
        self.total = 0

    def feed(self, event: Event) -> None:
        if event.kind in KINDS and getattr(event, "until", None) is None:  # who will be back is no trouble
            self.total += 1
            self._last.append(event)

    def document(self) -> dict[str, Any]:
        events = list(self._last)
        clients = [self._roster.find(getattr(event, "client", "")) for event in events]
        return {
            "total": self.total,  # the list has the last ones
            "t": [round(event.t, 2) for event in events],
            "kind": [event.kind for event in events],
            "client": clients,  # −1: not in the table of devices, or none; `name` then has its name
            "name": [
                "" if client >= 0 else _short(getattr(event, "client", ""), NAME_CHARACTERS)
                for event, client in zip(events, clients, strict=True)
            ],
            "task": [_short(getattr(event, "task", ""), NAME_CHARACTERS) for event in events],
            "reason": [_short(_reason(event), REASON_CHARACTERS) for event in events],
        }


def _reason(event: Event) -> str:
    if isinstance(event, Lowered):
        return f"its rate was {event.was} and is {event.rate} from now on"
    return str(getattr(event, "reason", None) or "")


def _short(text: object, limit: int) -> str:
    whole = str(text)
    return whole if len(whole) <= limit else whole[: limit - 1] + "…"
