"""What went wrong, with its reason: updates not let in, tasks that came to nothing, devices that went away."""

from __future__ import annotations

from collections import deque

from cos2p.tracking.event_kinds import Event, Lowered
from cos2p.view import model
from cos2p.view.roster import Roster

KINDS = (
    "refused",
    "dropped",
    "failed",
    "lost",
    "died",
    "left",
    "benched",
    "doubted",
    "lowered",
    "unfit",
    "unevaluated",
)
LISTED = 1000
REASON_CHARACTERS = 600
"""A client writes its own reasons; nobody reads more of one than this."""
NAME_CHARACTERS = 200


class Troubles:
    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._last: deque[Event] = deque(maxlen=LISTED)
        self.total = 0

    def feed(self, event: Event) -> None:
        if event.kind in KINDS and getattr(event, "until", None) is None:  # who will be back is no trouble
            self.total += 1
            self._last.append(event)

    def document(self) -> model.Troubles:
        events = list(self._last)
        clients = [self._roster.find(getattr(event, "client", "")) for event in events]
        return {
            "total": self.total,
            "t": [round(event.t, 2) for event in events],
            "kind": [event.kind for event in events],
            "client": clients,
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
