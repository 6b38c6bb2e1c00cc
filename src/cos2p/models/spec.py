"""`SubmodelSpec`: which part of the model a device trains. A plain value: frozen, hashable, JSON; no tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from cos2p.errors import SpecError
from cos2p.models.config import ModelConfig, hash_once


@dataclass(frozen=True)
class BlockSize:
    """Kept attention segments and MLP units of one block."""

    heads: int
    units: int

    @classmethod
    def full(cls, config: ModelConfig) -> BlockSize:
        return cls(config.groups, config.mlp)


@hash_once
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

    def others(self, config: ModelConfig) -> BlockKeep:
        """All segments of the block that are not kept."""
        heads, units = set(self.heads), set(self.units)
        return BlockKeep(
            tuple(h for h in range(config.groups) if h not in heads),
            tuple(u for u in range(config.mlp) if u not in units),
        )


@hash_once
@dataclass(frozen=True)
class SubmodelSpec:
    """Blocks [0, frozen) only infer, at full width; blocks [frozen, frozen + len(window)) train.

    What does not train inside and above the window is removed (`rest` and `suffix` false: a smaller model, for one that
    learns from scratch) or stays as it is, frozen (true: for a pretrained model, whose parts rely on each other).

    >>> from cos2p import model_config
    >>> spec = SubmodelSpec.full(model_config("vit-nano"))
    >>> spec.frozen, spec.top, spec.exits
    (0, 8, (8,))
    """

    frozen: int
    window: tuple[BlockKeep, ...]
    exits: tuple[int, ...]
    """Absolute depths (number of blocks below), ascending; the last is the submodel's top."""
    rest: bool = False
    """Whether the segments of the window's blocks that do not train stay in them, frozen."""
    suffix: bool = False
    """Whether the blocks above the window stay, frozen, at full width; the last exit is then the whole model's."""
    rows: tuple[int, ...] | None = None
    """The rows of the token table (and of an untied output table) that the device has, ascending; None: all."""
    fixed_embeddings: bool = False
    """Whether embeddings stay frozen even below an unfrozen window."""

    @property
    def top(self) -> int:
        """Number of blocks up to and including the window."""
        return self.frozen + len(self.window)

    @property
    def trains_embeddings(self) -> bool:
        """Embeddings train only below an unfrozen window: otherwise backward would have to cross the prefix."""
        return self.frozen == 0 and not self.fixed_embeddings

    @property
    def has_prefix(self) -> bool:
        """Whether something frozen runs before the window: blocks, or the embeddings alone."""
        return not self.trains_embeddings

    def above(self, config: ModelConfig) -> range:
        """The frozen blocks above the window."""
        return range(self.top, config.depth) if self.suffix else range(0)

    def keep(self, block: int) -> BlockKeep:
        """The kept segments of a trainable block, by its absolute index."""
        return self.window[block - self.frozen]

    @classmethod
    def full(cls, config: ModelConfig, exits: Iterable[int] | None = None) -> SubmodelSpec:
        """The whole model, with its last exit (or the exits named)."""
        return _full(config, tuple(exits) if exits is not None else (config.depth,))

    def check(self, config: ModelConfig) -> SubmodelSpec:
        """Raise SpecError if the spec names something the model does not have; return itself otherwise."""
        _check_spec(config, self)
        return self

    def _check(self, config: ModelConfig) -> None:
        if not self.window:
            raise SpecError("the window is empty; a submodel trains at least one block")
        if self.frozen < 0 or self.top > config.depth:
            raise SpecError(
                f"the window covers blocks {self.frozen} to {self.top - 1}, "
                f"but the model has blocks 0 to {config.depth - 1}"
            )
        for offset, keep in enumerate(self.window):
            _check_keep(config, self.frozen + offset, keep)
        self._check_exits(config)
        if self.rows is not None:
            if config.vocab == 0:
                raise SpecError("the spec names rows of a token table, but the model reads images")
            _check_ascending("rows", self.rows)
            if self.rows and (self.rows[0] < 0 or self.rows[-1] >= config.vocab):
                raise SpecError(f"rows {self.rows[0]} to {self.rows[-1]} are not all among 0 to {config.vocab - 1}")

    def _check_exits(self, config: ModelConfig) -> None:
        _check_ascending("exits", self.exits)
        last = config.depth if self.suffix else self.top
        inside = self.exits[:-1] if self.suffix and self.top < config.depth else self.exits
        if not self.exits or self.exits[-1] != last or any(not self.frozen < depth <= self.top for depth in inside):
            raise SpecError(
                f"exits {self.exits} must lie behind trainable blocks (depths {self.frozen + 1} to {self.top}) "
                f"and end at {last}"
            )

    def to_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = {
            "frozen": self.frozen,
            "window": [list(_bits_of(keep)) for keep in self.window],
            "exits": list(self.exits),
        }
        values |= {flag: True for flag in _FLAGS if getattr(self, flag)}  # a plain spec stays as short as it was
        if self.rows is not None:
            values["rows"] = to_bits(self.rows)
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any], config: ModelConfig | None = None) -> SubmodelSpec:
        """SpecError for anything else. Where the model is known, no set is read that is larger than the model's own."""
        if config is not None:
            _check_lengths(values, config)
        try:
            return cls(
                frozen=_integer(values["frozen"]),
                window=tuple(_keep_of(heads, units) for heads, units in values["window"]),
                exits=tuple(_integer(e) for e in values["exits"]),
                rows=from_bits(values["rows"]) if "rows" in values else None,
                **{flag: bool(values.get(flag, False)) for flag in _FLAGS},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SpecError(f"not a submodel spec: {error!r}") from None


@lru_cache(maxsize=64)
def _full(config: ModelConfig, exits: tuple[int, ...]) -> SubmodelSpec:
    """The very same for every task of a run: tables are kept by it."""
    return SubmodelSpec(0, (BlockKeep.full(config),) * config.depth, exits)


@lru_cache(maxsize=64)
def _check_spec(config: ModelConfig, spec: SubmodelSpec) -> None:
    """A spec that was right once stays so; a wrong one is named every time."""
    spec._check(config)


_FLAGS = ("rest", "suffix", "fixed_embeddings")


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _check_lengths(values: dict[str, Any], config: ModelConfig) -> None:
    """Before anything is unpacked: a few characters of a bit string become many numbers."""
    blocks = values.get("window")
    if not isinstance(blocks, list) or len(blocks) > config.depth:
        raise SpecError(f"its window is not a list of at most {config.depth} blocks")
    for keep in blocks:
        if not isinstance(keep, list) or len(keep) != 2:
            raise SpecError("its window has a block without heads and units")
        _check_text(keep[0], config.groups, "heads")
        _check_text(keep[1], config.mlp, "units")
    if not isinstance(values.get("exits"), list) or len(values["exits"]) > config.depth:
        raise SpecError(f"its exits are not a list of at most {config.depth} depths")
    if "rows" in values:
        _check_text(values["rows"], config.vocab, "rows")


def _check_text(text: Any, segments: int, what: str) -> None:
    if not isinstance(text, str) or len(text) > 2 * -(-segments // 8):
        raise SpecError(f"its {what} are not the bits of at most {segments}")


def _check_ascending(what: str, numbers: tuple[int, ...]) -> None:
    if not numbers or list(numbers) != sorted(set(numbers)):
        shown = numbers if len(numbers) < 9 else f"({numbers[0]}, {numbers[1]}, ... {numbers[-1]})"
        raise SpecError(f"{what} {shown} must be ascending, without repetition, and at least one")


def _check_keep(config: ModelConfig, block: int, keep: BlockKeep) -> None:
    for what, kept, size in (("head", keep.heads, config.groups), ("unit", keep.units, config.mlp)):
        if list(kept) != sorted(set(kept)):
            raise SpecError(f"block {block}: {what}s must be ascending without repetition")
        if kept and (kept[0] < 0 or kept[-1] >= size):
            wrong = kept[0] if kept[0] < 0 else kept[-1]
            raise SpecError(f"block {block} has no {what} {wrong}; its {what}s are 0 to {size - 1}")


# A spec travels with every task. Index sets as bit strings (hex) cost one bit a segment instead of five characters.
# Most tasks of a run cut their blocks in a few ways, again and again.


@lru_cache(maxsize=64)
def _bits_of(keep: BlockKeep) -> tuple[str, str]:
    return to_bits(keep.heads), to_bits(keep.units)


@lru_cache(maxsize=64)
def _keep_of(heads: str, units: str) -> BlockKeep:
    return BlockKeep(from_bits(heads), from_bits(units))


def to_bits(kept: Sequence[int]) -> str:
    """Ascending numbers as a bit string in hex: bit i of byte n is the number 8n + i.

    >>> to_bits((0, 2, 9)), from_bits("0502")
    ('0502', (0, 2, 9))
    """
    if not kept:
        return ""
    bits = np.zeros(kept[-1] + 1, dtype=np.uint8)
    bits[list(kept)] = 1
    return np.packbits(bits, bitorder="little").tobytes().hex()


def from_bits(text: str) -> tuple[int, ...]:
    """The counterpart of `to_bits`; ValueError if it is not hex."""
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(text), dtype=np.uint8), bitorder="little")
    return tuple(np.flatnonzero(bits).tolist())
