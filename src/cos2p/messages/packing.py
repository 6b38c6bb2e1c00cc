"""A message as bytes: what `safetensors.torch.save` gives, without a visit to every tensor in Python.

The table of tensors is written once for each set of names, types and shapes; a run has few of them, and thousands of
messages of each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from cos2p.messages.envelope import DTYPES

CODES: Mapping[torch.dtype, str] = {dtype: code for code, dtype in DTYPES.items()}

_ORDER = tuple(DTYPES[code] for code in ("I64", "F64", "F32", "I32", "BF16", "F16", "I16", "I8", "U8", "BOOL"))
"""As safetensors puts them, so that each begins where its type may be read."""

_Form = tuple[str, torch.dtype, torch.Size]


def pack(meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """A safetensors file with `meta` as JSON in its metadata."""
    forms = tuple((name, tensor.dtype, tensor.shape) for name, tensor in tensors.items())
    order, table = _table(forms)
    text = b'{"__metadata__":{"cos2p":' + json.dumps(json.dumps(meta), ensure_ascii=False).encode() + b"}" + table
    text += b" " * (-len(text) % 8)
    return b"".join((len(text).to_bytes(8, "little"), text, *_bodies([tensors[name] for name in order])))


@lru_cache(maxsize=64)
def _table(forms: tuple[_Form, ...]) -> tuple[tuple[str, ...], bytes]:
    """The names in the order of their bytes, and what the header says of them."""
    ordered = sorted(forms, key=lambda form: (_ORDER.index(form[1]), form[0].encode()))
    parts, end = [], 0
    for name, dtype, shape in ordered:
        begin, end = end, end + shape.numel() * dtype.itemsize
        entry = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
        parts.append(f",{json.dumps(name, ensure_ascii=False)}:{json.dumps(entry, separators=(',', ':'))}")
    return tuple(name for name, _, _ in ordered), "".join((*parts, "}")).encode()


def _bodies(tensors: list[Tensor]) -> list[memoryview]:
    """The bytes of each type, which lie beside each other, in one copy."""
    by_type: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        by_type.setdefault(tensor.dtype, []).append(tensor.detach().reshape(-1))
    return [torch.cat(own).view(torch.uint8).numpy().data for own in by_type.values()]
