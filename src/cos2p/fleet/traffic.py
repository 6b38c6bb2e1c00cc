"""What each client's link carried: tensors, and everything on top of them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

PARTS = ("tensors_down", "tensors_up", "wire_down", "wire_up")
"""Bytes of tensors that travelled, each counted once, and of all frames: heads, questions, beats, repetitions."""


def header_bytes(beginning: memoryview) -> int:
    """Bytes before the tensors in a safetensors payload: 8 with the header's length, and the header."""
    return 8 + int.from_bytes(beginning[:8], "little")


class LinkCounts:
    """Counters per client; called by the network's threads and by the run's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[str]] = {}

    def add(self, client: str, **parts: int) -> None:
        with self._lock:
            self._counts.setdefault(client, Counter()).update(parts)

    def of(self, client: str) -> dict[str, int]:
        with self._lock:
            counts = self._counts.get(client, Counter[str]())
            return {part: counts[part] for part in PARTS}

    def to_dict(self) -> dict[str, dict[str, int]]:
        return {client: self.of(client) for client in sorted(self._counts)}

    def load_dict(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        with self._lock:
            self._counts = {
                client: Counter({part: int(n) for part, n in own.items()}) for client, own in values.items()
            }
