"""What each client kept of each block at its last visit, and how far clients agree."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cos2p.tracking.event_kinds import Merged
from cos2p.view import model
from cos2p.view.segments import Track

SHOWN = 64
"""Devices whose masks stand in the document; of a larger fleet so many of those that have any."""


class MaskBook:
    def __init__(self, tracks: dict[str, Track]) -> None:
        self._tracks = tracks
        self._kept: dict[int, dict[int, tuple[str, str, int]]] = {}

    def merged(self, event: Merged, client: int, version: int) -> None:
        blocks = self._kept.setdefault(client, {})
        for block, (heads, units) in enumerate(event.kept or (), start=event.window[0]):
            blocks[block] = (heads, units, version)

    def document(self, clients: int) -> model.Masks:
        shown = list(range(clients)) if clients <= SHOWN else _spread(sorted(self._kept))
        return {
            "devices": shown,
            "kept": [
                [
                    {"block": block, "heads": heads, "units": units, "version": version}
                    for block, (heads, units, version) in sorted(self._kept.get(client, {}).items())
                ]
                for client in shown
            ],
            "agreement_heads": self._agreement(shown, 0),
            "agreement_units": self._agreement(shown, 1),
        }

    def _agreement(self, shown: list[int], place: int) -> list[list[float | None]]:
        """|both| / |either| over the blocks that both have trained: products of bit matrices."""
        track, clients = list(self._tracks.values())[place], len(shown)
        kept = np.zeros((clients, track.depth, track.stride), dtype=np.float32)
        there = np.zeros((clients, track.depth), dtype=np.float32)
        for client, device in enumerate(shown):
            blocks = self._kept.get(device)
            if blocks:
                order = list(blocks)
                kept[client, order] = track.decode([blocks[block][:2][place] for block in order]).reshape(
                    -1, track.stride
                )
                there[client, order] = 1.0
        sizes = kept.sum(axis=2)
        flat = kept.reshape(clients, -1)
        both = flat @ flat.T
        mine = sizes @ there.T  # [i][j]: segments i kept in the blocks that j has too
        return _shares(both, mine + mine.T - both)


def _shares(part: NDArray[Any], whole: NDArray[Any]) -> list[list[float | None]]:
    return [
        [round(float(p / w), 3) if w > 0 else None for p, w in zip(parts, wholes, strict=True)]
        for parts, wholes in zip(part, whole, strict=True)
    ]


def _spread(devices: list[int]) -> list[int]:
    count = min(SHOWN, len(devices))
    return [devices[number * len(devices) // count] for number in range(count)]


def no_masks(clients: int) -> model.Masks:
    """Of a run whose model is not known."""
    shown = list(range(min(clients, SHOWN)))
    nothing: list[list[float | None]] = [[None] * len(shown) for _ in shown]
    return {"devices": shown, "kept": [[] for _ in shown], "agreement_heads": nothing, "agreement_units": nothing}
