"""Which heads and units each update held, as bits: coverage, the weights γ̃, and masks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cos2p.tracking.event_kinds import Merged

KINDS = ("heads", "units")
Bits = NDArray[np.bool_]


@dataclass
class Held:
    part: slice
    """Its place in the flat array over all blocks."""
    bits: Bits
    weight: float


@dataclass
class Track:
    """One kind of segments, all blocks in one flat array; a block's segments are padded to whole bytes."""

    depth: int
    size: int
    """Segments of a block."""
    clients: int = 0
    updates: NDArray[np.int64] = field(init=False)
    last: NDArray[np.int64] = field(init=False)
    by_client: NDArray[np.uint8] = field(init=False)
    """A row of packed bits for each client: thousands of clients have to fit."""

    def __post_init__(self) -> None:
        self.stride = 8 * ((self.size + 7) // 8)
        length = self.depth * self.stride
        self.updates = np.zeros(length, dtype=np.int64)
        self.last = np.zeros(length, dtype=np.int64)
        self.by_client = np.zeros((self.clients, length // 8), dtype=np.uint8)

    def decode(self, texts: list[str]) -> Bits:
        """Bits of consecutive blocks, each a bit string in hex that may end early."""
        digits = self.stride // 4
        joined = "".join(text.ljust(digits, "0")[:digits] for text in texts)
        return np.unpackbits(np.frombuffer(bytes.fromhex(joined), dtype=np.uint8), bitorder="little").astype(np.bool_)

    def window(self, start: int, top: int) -> slice:
        return slice(start * self.stride, top * self.stride)

    def add(self, client: int, part: slice, bits: Bits, version: int) -> None:
        if client >= len(self.by_client):
            more = np.zeros((max(client + 1, 2 * len(self.by_client)), self.by_client.shape[1]), dtype=np.uint8)
            more[: len(self.by_client)] = self.by_client
            self.by_client = more
        self.updates[part] += bits
        self.last[part][bits] = version
        packed = slice(part.start // 8, part.stop // 8)
        self.by_client[client, packed] |= np.packbits(bits, bitorder="little")

    def different_clients(self) -> NDArray[np.int64]:
        total = np.zeros(self.depth * self.stride, dtype=np.int64)
        for first in range(0, len(self.by_client), 256):  # unpacked, all at once would take eight times the room
            bits = np.unpackbits(self.by_client[first : first + 256], axis=1, bitorder="little")
            total += bits.sum(axis=0, dtype=np.int64)
        return total

    def table(self, flat: NDArray[Any]) -> list[list[Any]]:
        """[block][segment], without the padding."""
        return [row[: self.size].tolist() for row in flat.reshape(self.depth, self.stride)]


class CoverageBuilder:
    """Counts who trained what, and the weight of each update among those that held the same."""

    def __init__(self, config: dict[str, Any]) -> None:
        depth = int(config["depth"])
        groups = int(config.get("kv_heads") or config["heads"])
        self.depth = depth
        self.tracks = {"heads": Track(depth, groups), "units": Track(depth, int(config["mlp"]))}
        self._round: list[dict[str, Held]] = []
        self._weighed = True
        """Whether the log says what each update of the open round weighs."""

    def merged(self, event: Merged, client: int, version: int) -> None:
        """`version` is the one that the open round will make."""
        start, kept = event.window[0], event.kept or ()
        self._weighed = self._weighed and event.weight is not None
        held = {}
        for place, (kind, track) in enumerate(self.tracks.items()):
            bits = track.decode([block[place] for block in kept])
            part = track.window(start, start + len(kept))
            track.add(client, part, bits, version)
            held[kind] = Held(part, bits, float((event.weight or {}).get(kind) or 0.0))
        self._round.append(held)

    def aggregated(self) -> list[float | None]:
        """Close the round: γ̃ of its updates, in their order; None where the log does not say."""
        shares: list[list[float]] = [[] for _ in self._round]
        for kind, track in self.tracks.items():
            total = np.zeros(self.depth * track.stride)
            for update in self._round:
                held = update[kind]
                total[held.part] += held.weight * held.bits
            inverse = np.divide(1.0, total, out=np.zeros_like(total), where=total > 0)
            for number, update in enumerate(self._round):
                held = update[kind]
                count = int(held.bits.sum())
                if count:
                    shares[number].append(float(held.weight * inverse[held.part][held.bits].sum() / count))
        weighed, self._round, self._weighed = self._weighed, [], True
        if not weighed:
            return [None] * len(shares)
        return [sum(share) / len(share) if share else None for share in shares]

    def document(self) -> dict[str, list[list[int]]]:
        """[block][segment] over the whole run so far; the smallest number of different clients is its N*."""
        heads, units = self.tracks["heads"], self.tracks["units"]
        return {
            "heads": heads.table(heads.updates),
            "units": units.table(units.updates),
            "heads_clients": heads.table(heads.different_clients()),
            "units_clients": units.table(units.different_clients()),
            # The version that trained it last; 0: never.
            "heads_last": heads.table(heads.last),
            "units_last": units.table(units.last),
        }


# ---------------------------------------------------------------- masks

SHOWN = 64
"""Devices whose masks stand in the document; of a larger fleet so many of those that have any."""


class MasksBuilder:
    """The segments that each client kept of each block at its last visit, and how far clients agree."""

    def __init__(self, tracks: dict[str, Track]) -> None:
        self._tracks = tracks
        self._kept: dict[int, dict[int, tuple[str, str, int]]] = {}

    def merged(self, event: Merged, client: int, version: int) -> None:
        blocks = self._kept.setdefault(client, {})
        for block, (heads, units) in enumerate(event.kept or (), start=event.window[0]):
            blocks[block] = (heads, units, version)

    def document(self, clients: int) -> dict[str, Any]:
        """Bits in hex, the lowest of the first byte is segment 0; they may end early, the rest is not kept."""
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
            # [device here][device here]: |both| / |either| over the blocks that both have trained; null: there is none.
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


def no_masks(clients: int) -> dict[str, Any]:
    """For a run whose model is not known."""
    shown = list(range(min(clients, SHOWN)))
    nothing: list[list[float | None]] = [[None] * len(shown) for _ in shown]
    return {"devices": shown, "kept": [[] for _ in shown], "agreement_heads": nothing, "agreement_units": nothing}
