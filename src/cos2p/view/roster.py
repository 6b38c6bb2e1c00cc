"""The devices of a run, in the order in which the log names them: a name becomes an index once and for all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cos2p.view.log import Event


@dataclass
class Roster:
    names: list[str] = field(default_factory=list)
    facts: list[dict[str, Any]] = field(default_factory=list)
    """What is known beforehand: rate, samples, batch, memory, flops."""
    _index: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    def index(self, name: Any) -> int:
        """The device's number; a new one if the name is new."""
        text = str(name)
        if text not in self._index:
            self._index[text] = len(self.names)
            self.names.append(text)
            self.facts.append({})
        return self._index[text]

    def find(self, name: Any) -> int:
        """The device's number, −1 if there is none of this name."""
        return self._index.get(str(name), -1)

    def feed(self, event: Event) -> None:
        if event["kind"] == "started":
            for name, facts in event["devices"].items():
                self.facts[self.index(name)] |= facts
        elif event["kind"] == "joined":  # on a fleet, anybody may come later and with other figures
            facts = self.facts[self.index(event["client"])]
            facts.update((key, event[key]) for key in ("rate", "samples", "memory") if key in event)
        elif event["kind"] == "lowered":
            self.facts[self.index(event["client"])]["rate"] = event["rate"]
