"""A message's bytes, opened with care: a safetensors file whose header is read and checked before any tensor is made.

    8 bytes: length of the header │ header: JSON │ tensors, one behind the other

What the header says is compared with the bytes that are there: every type is known, every tensor is as long as its
shape says, and together they cover all of the rest. Only then, and only for the tensors that are asked for, memory is
taken.
"""

from __future__ import annotations

import json
import math
import mmap
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cos2p import strict_json
from cos2p.errors import UpdateRefused
from cos2p.models.layout import Weights

Buffer = bytes | mmap.mmap
"""A message's bytes: in memory, or in a file that is mapped."""


def mapped(path: Path, access: int = mmap.ACCESS_COPY) -> mmap.mmap:
    """A file's bytes, read when they are looked at; the file may be deleted meanwhile. Changes stay in memory.

    With `mmap.ACCESS_READ` nobody writes, and the pages are the system's alone.
    """
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=access)


TASK_HEADER_BYTES = 100 * 2**20
"""Longest header of a task; safetensors' own limit."""

BYTES_PER_VALUE = 3
"""No value of a header takes less, so a header of n bytes holds at most n / 3 of them."""

AXES = 8

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class Entry:
    """A tensor as a header describes it; begin and end are counted from the first tensor's first byte."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int

    @classmethod
    def parse(cls, name: str, values: Any) -> Entry:
        if not isinstance(values, dict) or values.keys() != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"tensor {_short(name)} has no dtype, shape and data_offsets")
        dtype, shape, offsets = values["dtype"], values["shape"], values["data_offsets"]
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise ValueError(f"tensor {_short(name)} is of an unknown type")
        if not (_counts(shape) and len(shape) <= AXES):
            raise ValueError(f"tensor {_short(name)} has no shape")
        if not (_counts(offsets) and len(offsets) == 2):
            raise ValueError(f"tensor {_short(name)} lies nowhere")
        entry = cls(DTYPES[dtype], tuple(shape), *offsets)
        if entry.end - entry.begin != math.prod(entry.shape) * entry.dtype.itemsize:
            raise ValueError(f"tensor {_short(name)} is not as long as its shape says")
        return entry


class Table:
    """The tensors in a header, and what follows from that for every message with the same ones."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self.entries = MappingProxyType(entries)
        """By name, sorted: sums over tensors must not depend on the order in which they came."""
        self.found = MappingProxyType({name: (entry.dtype, entry.shape) for name, entry in entries.items()})
        """Type and shape of each."""
        self.stray = next((name for name in entries if not all(name.partition("/"))), None)
        """A tensor of no part."""
        self.labels = {name.partition("/")[0] for name in entries}


@dataclass(frozen=True, eq=False)
class Envelope:
    """An opened message: what it says, and where its tensors lie."""

    meta: dict[str, Any]
    """The message's own header."""
    table: Table
    _data: Buffer
    _start: int
    """Where the tensors' bytes begin."""

    @property
    def entries(self) -> Mapping[str, Entry]:
        return self.table.entries

    @classmethod
    def open(cls, data: Buffer, header_bytes: int, values: int | None = None) -> Envelope:
        """ValueError for anything that is not a message with a header of at most so many bytes and values."""
        size = int.from_bytes(data[:8], "little")
        if len(data) < 8 or size > len(data) - 8:
            raise ValueError(f"{len(data)} bytes with a header of {size}: truncated")
        if size > header_bytes:
            raise ValueError(f"a header of {size} bytes; at most {header_bytes} are read")
        most = size // BYTES_PER_VALUE if values is None else values
        text, table = _read_header(data[8 : 8 + size], most, len(data) - 8 - size)
        return cls(_object(strict_json.loads(text, most), "metadata"), table, data, 8 + size)

    @classmethod
    def of(cls, head: bytes, body: bytes) -> Envelope:
        """A message from who is trusted, which came in two pieces: its header, and its tensors' bytes."""
        text, table = _read_header(head[8:], TASK_HEADER_BYTES, len(body))
        return cls(_object(json.loads(text), "metadata"), table, body, 0)

    def tensor(self, name: str) -> Tensor:
        """In memory of its own: at any address of a message, kernels on it might round differently every time.

        Of a mapped file it stays there, so that only what is looked at is read.
        """
        entry = self.entries[name]
        if entry.begin == entry.end:
            return torch.empty(entry.shape, dtype=entry.dtype)
        start, size = self._start + entry.begin, entry.end - entry.begin
        if isinstance(self._data, mmap.mmap) and start % entry.dtype.itemsize == 0:
            count = size // entry.dtype.itemsize
            return torch.frombuffer(self._data, dtype=entry.dtype, count=count, offset=start).view(entry.shape)
        room = torch.empty(size, dtype=torch.uint8)
        room.numpy()[:] = np.frombuffer(self._data, dtype=np.uint8, count=size, offset=start)
        return room.view(entry.dtype).view(entry.shape)

    def part(self, label: str) -> Weights:
        """The tensors of one part, without its label."""
        start = f"{label}/"
        return {name.removeprefix(start): self.tensor(name) for name in self.entries if name.startswith(start)}

    def check_parts(self, *labels: str) -> None:
        """ValueError for a tensor of another part."""
        if self.table.stray is None and self.table.labels <= set(labels):
            return
        stray = self.table.stray or next(name for name in self.entries if name.partition("/")[0] not in labels)
        raise ValueError(f"tensor {_short(stray)} belongs to no part of the message")


_PLAIN_HEADER = re.compile(rb'\{"__metadata__":\{"cos2p":("[^"\\]*(?:\\.[^"\\]*)*")\}')
"""The beginning of a header as `packing` and safetensors write it: the message's own text first."""

_KNOWN_BYTES = 2**18
"""Longest table of tensors that is remembered."""


def _read_header(header: bytes, values: int, size: int) -> tuple[str, Table]:
    """The message's own text, and its tensors, which take `size` bytes; ValueError if something is wrong.

    Messages of a run differ in their text, and hardly in their tables: a table that was read before is not read again.
    """
    plain = _PLAIN_HEADER.match(header)
    table = header[plain.end() :].rstrip(b" ") if plain else b""  # headers are filled up to a multiple of 8 bytes
    if plain is None or not table.startswith((b",", b"}")) or len(table) > _KNOWN_BYTES:
        return _read_any_header(header, values, size)
    try:
        own: str = json.loads(plain[1].decode())
    except UnicodeDecodeError:
        raise ValueError("it is not text") from None
    return own, _read_table(b"{" + table.removeprefix(b","), values, size)


@lru_cache(maxsize=16)
def _read_table(table: bytes, values: int, size: int) -> Table:
    return Table(_entries(_object(strict_json.loads(table, values), "header"), size))


def _read_any_header(text: bytes, values: int, size: int) -> tuple[str, Table]:
    header = _object(strict_json.loads(text, values), "header")
    meta = _object(header.pop("__metadata__", None), "metadata")
    if not isinstance(meta.get("cos2p"), str):
        raise ValueError("metadata of something else")
    return meta["cos2p"], Table(_entries(header, size))


def _entries(header: Mapping[str, Any], size: int) -> dict[str, Entry]:
    entries = {name: Entry.parse(name, header[name]) for name in sorted(header)}
    _check_cover(entries, size)
    return entries


def _check_cover(entries: Mapping[str, Entry], size: int) -> None:
    """All bytes belong to exactly one tensor."""
    place = 0
    for entry in sorted(entries.values(), key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != place:
            raise ValueError(f"byte {place} of the tensors belongs to none, or to two")
        place = entry.end
    if place != size:
        raise ValueError(f"{size} bytes of tensors, the header says {place}")


def _counts(values: Any) -> bool:
    """A list of whole numbers from 0 on."""
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not an object")
    return value


def _short(name: str) -> str:
    return repr(name if len(name) <= 80 else f"{name[:80]}...")


@dataclass(frozen=True)
class TensorForm:
    """A tensor that a device sends next to its update: its type, its shape, and between what its values lie."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    low: float = -math.inf
    high: float = math.inf
    shorter: bool = False
    """Whether its first axis may be shorter."""
    optional: bool = False
    """Whether it may be missing."""

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def fits(self, dtype: torch.dtype, shape: tuple[int, ...]) -> bool:
        if dtype != self.dtype or len(shape) != len(self.shape):
            return False
        if self.shorter and shape:
            return shape[0] <= self.shape[0] and shape[1:] == self.shape[1:]
        return shape == self.shape

    def __str__(self) -> str:
        size = " × ".join(map(str, self.shape)) or "one number"
        return f"{str(self.dtype).removeprefix('torch.')}, {'at most ' if self.shorter else ''}{size}"


Forms = Mapping[str, TensorForm]


def check_forms(forms: Forms, found: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> None:
    """UpdateRefused unless names, types and shapes are those expected; no value is looked at."""
    for name, (dtype, shape) in found.items():
        if name not in forms:
            known = ", ".join(forms) or "nothing"
            raise UpdateRefused(f"it carries {name[:80]!r}; {known} is expected next to the update")
        if not forms[name].fits(dtype, shape):
            raise UpdateRefused(f"{name} is {dtype} of shape {shape}; expected is {forms[name]}")
    missing = [name for name, form in forms.items() if name not in found and not form.optional]
    if missing:
        raise UpdateRefused(f"{missing[0]} is missing")


def check_values(forms: Forms, tensors: Mapping[str, Tensor]) -> None:
    """UpdateRefused unless all values are finite and between the bounds of their form."""
    for name, tensor in tensors.items():
        if not tensor.numel():
            continue
        low, high = (float(value) for value in torch.aminmax(tensor.flatten()))
        if not (math.isfinite(low) and math.isfinite(high)):
            raise UpdateRefused(f"{name} has values that are not finite")
        if not forms[name].low <= low <= high <= forms[name].high:
            bounds = f"{forms[name].low:.3g} to {forms[name].high:.3g}"
            raise UpdateRefused(f"{name} has values from {low:.3g} to {high:.3g}; {bounds} are let in")
