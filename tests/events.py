"""Events for tests: what a test does not care about is filled in."""

from __future__ import annotations

from typing import Any

from cos2p.tracking.event_kinds import KINDS, Event, Resumed, Waiting

_FILLED: dict[str, Any] = {
    "client": "pi", "task": "pi#0", "reason": "why", "version": 0, "merged": 0, "recipe": "by-hand", "method": "cos2p",
    "seed": 0, "rounds": None, "updates": None, "model": {}, "devices": {}, "cycle": 0, "window": [0, 1], "exits": [1],
    "masks": False, "lr": 0.1, "bytes": 0, "staleness": 0, "size": 0.1, "report": {}, "round": 0, "clients": [],
    "n_star": None, "heads": [], "units": [], "was": 1.0, "rate": 0.5, "memory": 1,
    "epsilon": 1.5, "delta": 1e-5, "budget": None, "noise": "central", "clip": 1.0, "multiplier": 2.0,
    "agreement": -0.1, "trust": 0.5, "tensors_down": 0, "tensors_up": 0, "wire_down": 0, "wire_up": 0,
    "tried": [1e-3], "losses": [0.9],
}  # fmt: skip


def event(kind: str, t: float = 0.0, **fields: Any) -> Event:
    """An event of this kind, its other required fields filled with anything."""
    made = {**KINDS, "resumed": Resumed, "waiting": Waiting}[kind]
    filled = {name: _FILLED[name] for name in made.required if name not in fields}
    return made(t=t, **filled, **fields)
