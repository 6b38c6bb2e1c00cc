"""A message as bytes: what `safetensors.torch.save` gives, without a visit to every tensor in Python.

The table of tensors is written once for each set of names, types and shapes; a run has few of them, and thousands of
messages of each.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cos2p.messages.envelope import DTYPES

CODES: Mapping[torch.dtype, str] = {dtype: code for code, dtype in DTYPES.items()}

_ORDER = tuple(DTYPES[code] for code in ("I64", "F64", "F32", "I32", "BF16", "F16", "I16", "I8", "U8", "BOOL"))
"""As safetensors puts them, so that each begins where its type may be read."""

_Form = tuple[str, torch.dtype, torch.Size]
"""Name, type and shape of a tensor."""


def place(name: str, dtype: torch.dtype) -> tuple[int, bytes]:
    """Tensors of a message stand in the order of this."""
    return _ORDER.index(dtype), name.encode()


@dataclass(frozen=True, eq=False)
class Packet:
    """A message that is not put together yet. `bytes(packet)` is the message, `len(packet)` its length."""

    head: bytes
    bodies: Sequence[memoryview]
    """The tensors' bytes, one behind the other."""

    def __bytes__(self) -> bytes:
        return b"".join((self.head, *self.bodies))

    def __len__(self) -> int:
        return len(self.head) + sum(body.nbytes for body in self.bodies)


def pack(meta: Mapping[str, Any], **parts: Mapping[str, Tensor]) -> Packet:
    """A safetensors file with `meta` as JSON in its metadata, and the tensors of each part as `LABEL/NAME`."""
    tensors = {f"{label}/{name}": tensor for label, part in parts.items() for name, tensor in part.items()}
    order, table = _table(tuple((name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()))
    text = b'{"__metadata__":{"cos2p":' + json.dumps(json.dumps(meta), ensure_ascii=False).encode() + b"}" + table
    text += b" " * (-len(text) % 8)
    return Packet(len(text).to_bytes(8, "little") + text, _bodies([tensors[name] for name in order]))


def write_file(path: Path, metadata: Mapping[str, str], forms: Sequence[_Form], tensors: Iterable[Tensor]) -> None:
    """A safetensors file of tensors that are asked for one by one: no two of them have to be in memory at a time."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, dtype, shape in forms:
        begin, end = end, end + shape.numel() * dtype.itemsize
        header[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            file.write(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)


@lru_cache(maxsize=64)
def _table(forms: tuple[_Form, ...]) -> tuple[tuple[str, ...], bytes]:
    """The names in the order of their bytes, and what the header says of them."""
    ordered = sorted(forms, key=lambda form: place(form[0], form[1]))
    parts, end = [], 0
    for name, dtype, shape in ordered:
        begin, end = end, end + shape.numel() * dtype.itemsize
        entry = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
        parts.append(f",{json.dumps(name, ensure_ascii=False)}:{json.dumps(entry, separators=(',', ':'))}")
    return tuple(name for name, _, _ in ordered), "".join((*parts, "}")).encode()


def _bodies(tensors: list[Tensor]) -> list[memoryview]:
    """The bytes of each type, which lie next to each other, in one copy."""
    by_type: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        by_type.setdefault(tensor.dtype, []).append(tensor.detach().reshape(-1))
    return [torch.cat(own).view(torch.uint8).numpy().data for own in by_type.values()]
