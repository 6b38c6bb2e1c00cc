"""The devices of a run, in the order in which the log names them: a name becomes an index once and for all."""

from __future__ import annotations

from dataclasses import dataclass, field

from cos2p.tracking.event_kinds import Event, Joined, Lowered, Started


@dataclass
class Roster:
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
