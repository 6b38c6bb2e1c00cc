"""`SubmodelSpec`: which part of the model a device trains. A plain value: frozen, hashable, JSON; no tensors."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cos2p.errors import SpecError
from cos2p.models.config import ModelConfig


@dataclass(frozen=True)
class BlockSize:
    """Kept attention segments and MLP units of one block."""

    heads: int
    units: int

    @classmethod
    def full(cls, config: ModelConfig) -> BlockSize:
        return cls(config.groups, config.mlp)


@dataclass(frozen=True)
class BlockKeep:
    """The attention segments and MLP units of one block that are kept, ascending."""

    heads: tuple[int, ...]
    units: tuple[int, ...]

    @classmethod
    def of(cls, heads: Iterable[int], units: Iterable[int]) -> BlockKeep:
        """Sorted, as plain integers, whatever they came from (lists, arrays, tensors)."""
        return cls(tuple(sorted(int(h) for h in heads)), tuple(sorted(int(u) for u in units)))

    @classmethod
    def full(cls, config: ModelConfig) -> BlockKeep:
        return cls(tuple(range(config.groups)), tuple(range(config.mlp)))


@dataclass(frozen=True)
class SubmodelSpec:
    """Blocks [0, frozen) only infer, blocks [frozen, frozen + len(window)) train, blocks above are removed.

    >>> from cos2p import model
    >>> spec = SubmodelSpec.full(model("vit-nano"))
    >>> spec.frozen, spec.top, spec.exits
    (0, 8, (8,))
    """

    frozen: int
    window: tuple[BlockKeep, ...]
    exits: tuple[int, ...]
    """Absolute depths (number of blocks below), ascending; the last is the submodel's top."""
    prefix: tuple[BlockKeep, ...] | None = None
    """How the frozen blocks are cut; None keeps their full width (the default: see docs/explanation)."""

    @property
    def top(self) -> int:
        """Number of blocks up to and including the window."""
        return self.frozen + len(self.window)

    @property
    def trains_embeddings(self) -> bool:
        """Embeddings train only below an unfrozen window: otherwise backward would have to cross the prefix."""
        return self.frozen == 0

    def keep(self, block: int) -> BlockKeep:
        """What is kept of a trainable block, by its absolute index."""
        return self.window[block - self.frozen]

    @classmethod
    def full(cls, config: ModelConfig, exits: Iterable[int] | None = None) -> SubmodelSpec:
        """The whole model, with its last exit (or the exits named)."""
        chosen = tuple(exits) if exits is not None else (config.depth,)
        return cls(0, (BlockKeep.full(config),) * config.depth, chosen)

    def check(self, config: ModelConfig) -> SubmodelSpec:
        """Raise SpecError if the spec names something the model does not have; return itself otherwise."""
        if not self.window:
            raise SpecError("the window is empty; a submodel trains at least one block")
        if self.frozen < 0 or self.top > config.depth:
            raise SpecError(
                f"the window covers blocks {self.frozen} to {self.top - 1}, "
                f"but the model has blocks 0 to {config.depth - 1}"
            )
        for offset, keep in enumerate(self.window):
            _check_keep(config, self.frozen + offset, keep)
        if self.prefix is not None:
            if len(self.prefix) != self.frozen:
                raise SpecError(f"the prefix lists {len(self.prefix)} blocks, but {self.frozen} are frozen")
            for block, keep in enumerate(self.prefix):
                _check_keep(config, block, keep)
        if not self.exits or list(self.exits) != sorted(set(self.exits)):
            raise SpecError(f"exits {self.exits} must be ascending, without repetition, and at least one")
        if self.exits[0] <= self.frozen or self.exits[-1] != self.top:
            raise SpecError(
                f"exits {self.exits} must lie behind trainable blocks (depths {self.frozen + 1} to {self.top}) "
                f"and end at {self.top}"
            )
        return self

    def to_dict(self) -> dict[str, Any]:
        return {
            "frozen": self.frozen,
            "window": [_pack(keep) for keep in self.window],
            "exits": list(self.exits),
            "prefix": None if self.prefix is None else [_pack(keep) for keep in self.prefix],
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> SubmodelSpec:
        try:
            prefix = values["prefix"]
            return cls(
                frozen=int(values["frozen"]),
                window=tuple(_unpack(keep) for keep in values["window"]),
                exits=tuple(int(e) for e in values["exits"]),
                prefix=None if prefix is None else tuple(_unpack(keep) for keep in prefix),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SpecError(f"not a submodel spec: {error!r}") from None

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> SubmodelSpec:
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise SpecError(f"not a submodel spec: {error}") from None
        if not isinstance(values, dict):
            raise SpecError(f"not a submodel spec: expected an object, got {type(values).__name__}")
        return cls.from_dict(values)


def _check_keep(config: ModelConfig, block: int, keep: BlockKeep) -> None:
    for what, kept, size in (("head", keep.heads, config.groups), ("unit", keep.units, config.mlp)):
        if list(kept) != sorted(set(kept)):
            raise SpecError(f"block {block}: {what}s must be ascending without repetition")
        if kept and (kept[0] < 0 or kept[-1] >= size):
            wrong = kept[0] if kept[0] < 0 else kept[-1]
            raise SpecError(f"block {block} has no {what} {wrong}; its {what}s are 0 to {size - 1}")


# A spec travels with every task. Index sets as bit strings (hex) cost one bit a segment instead of five characters.


def _pack(keep: BlockKeep) -> list[Any]:
    return [_to_bits(keep.heads), _to_bits(keep.units)]


def _unpack(packed: Any) -> BlockKeep:
    heads, units = packed
    return BlockKeep(_from_bits(heads), _from_bits(units))


def _to_bits(kept: tuple[int, ...]) -> str:
    if not kept:
        return ""
    bits = np.zeros(kept[-1] + 1, dtype=np.uint8)
    bits[list(kept)] = 1
    return np.packbits(bits, bitorder="little").tobytes().hex()


def _from_bits(text: str) -> tuple[int, ...]:
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(text), dtype=np.uint8), bitorder="little")
    return tuple(np.flatnonzero(bits).tolist())
