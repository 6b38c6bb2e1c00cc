"""Ways to corrupt an update: its bytes, its header, what it says, its tensors. Seeded, so that each can be repeated.

A mutation gets the bytes of an honest update and a random generator and returns other bytes.
"""

from __future__ import annotations

import json
import math
import random
import struct
import sys
from collections.abc import Callable
from typing import Any

Mutation = Callable[[bytes, random.Random], bytes]

NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 10**17, 10**19, 10**5000 - 1, 1e308, -1e308, math.inf, -math.inf,
    math.nan, 0.5, True, None, "", "x", "9" * 5000, [], {}, [[]], [1], {"a": 1}, "\ud800", "ff" * 20000, [0] * 3000,
)  # fmt: skip
"""What stands in the place of a value."""
FLOATS = (math.nan, math.inf, -math.inf, 3e38, -3e38, 1e31, 1e4, 99.0, 11.0, 1e-45, 0.0)
TYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL", "F8_E4M3", "", "F33", 7)


def split(data: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """Header, message's own header, tensors."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    return header, json.loads(header["__metadata__"]["cos2p"]), data[8 + size :]


def joined(header: dict[str, Any], meta: Any, body: bytes) -> bytes:
    header = {**header, "__metadata__": {"cos2p": meta if isinstance(meta, str) else _json(meta)}}
    text = _json(header).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text)) + text + body


def _json(value: Any) -> str:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return json.dumps(value, ensure_ascii=False)
    finally:
        sys.set_int_max_str_digits(before)


def bytes_changed(data: bytes, rng: random.Random) -> bytes:
    corrupted = bytearray(data)
    reach = len(corrupted) if rng.random() < 0.3 else min(len(corrupted), 4000)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        corrupted[rng.randrange(reach)] = rng.randrange(256)
    return bytes(corrupted)


def cut_or_grown(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.5:
        return data[: rng.randrange(len(data))]
    return data + bytes(rng.choice((1, 8, 4096)))


def length_changed(data: bytes, rng: random.Random) -> bytes:
    size = rng.choice((0, 1, len(data), len(data) - 8, 2**20, 2**31, 2**63, 2**64 - 1))
    return struct.pack("<Q", size) + data[8:]


def meta_changed(data: bytes, rng: random.Random) -> bytes:
    """A value anywhere in what the update says of itself is another, missing, or there is one more."""
    header, meta, body = split(data)
    return joined(header, _changed(meta, rng), body)


def header_changed(data: bytes, rng: random.Random) -> bytes:
    header, meta, body = split(data)
    kept = _changed({name: value for name, value in header.items() if name != "__metadata__"}, rng)
    if isinstance(kept, dict):
        return joined(kept, meta, body)
    text = _json(kept).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text)) + text + body


def _changed(value: Any, rng: random.Random) -> Any:
    """One value of a nested one, replaced."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        what = rng.random()
        if what < 0.1:
            return {k: v for k, v in value.items() if k != key}
        if what < 0.2:
            return {**value, rng.choice(("x", "d/x", "x/seeds", "x/codes", "x/mask", "loss", "n" * 5000)): value[key]}
        return {**value, key: _changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = rng.randrange(len(value))
        return [*value[:place], _changed(value[place], rng), *value[place + 1 :]]
    return rng.choice(NUMBERS)


def tensor_retyped(data: bytes, rng: random.Random) -> bytes:
    """A tensor of another type or shape, with offsets that may or may not follow."""
    header, meta, body = split(data)
    names = [name for name in header if name != "__metadata__"]
    if not names:
        return header_changed(data, rng)
    entry = dict(header[name := rng.choice(names)])
    if rng.random() < 0.4:
        entry["dtype"] = rng.choice(TYPES)
    else:
        entry["shape"] = rng.choice(
            (
                [2**40, 2**40],
                [2**62, 4],
                [0],
                [],
                [-1],
                [1] * 100,
                [0, 2**63],
                entry["shape"][::-1],
                [1, *entry["shape"]],
            )
        )
    if rng.random() < 0.3:
        entry["data_offsets"] = rng.choice(([0, 0], [0, 2**60], [5, 1], [-4, 0], [0, len(body)]))
    return joined({**header, name: entry}, meta, body)


def values_changed(data: bytes, rng: random.Random) -> bytes:
    """Some numbers of the tensors are not finite, or very large."""
    header, meta, body = split(data)
    if len(body) < 4:
        return meta_changed(data, rng)
    corrupted = bytearray(body)
    everywhere = rng.random() < 0.2
    value = struct.pack("<f", rng.choice(FLOATS))
    for _ in range(1 if not everywhere else 0):
        place = rng.randrange(len(corrupted) // 4) * 4
        corrupted[place : place + 4] = value
    if everywhere:
        corrupted[:] = (value * (len(corrupted) // 4 + 1))[: len(corrupted)]
    return joined(header, meta, bytes(corrupted))


def enlarged(data: bytes, rng: random.Random) -> bytes:
    """Several tensors at once, each just within what is let in: all of one number, or as they are but longer."""
    header, meta, body = split(data)
    names = [name for name, entry in header.items() if name != "__metadata__" and entry["dtype"] == "F32"]
    if not names:
        return noise_in_tensors(data, rng)
    chosen = names if rng.random() < 0.5 else rng.sample(names, rng.randint(1, len(names)))
    size, ones, corrupted = rng.choice((9.9, -9.9, 3.0, 1.0, 0.3)), rng.random() < 0.5, bytearray(body)
    for name in chosen:
        first, last = header[name]["data_offsets"]
        values = struct.unpack(f"<{(last - first) // 4}f", body[first:last])
        largest = max(map(abs, values), default=0.0) or 1.0
        new = [size if ones else value / largest * size for value in values]
        corrupted[first:last] = struct.pack(f"<{len(new)}f", *new)
    return joined(header, meta, bytes(corrupted))


def statistics_moved(data: bytes, rng: random.Random) -> bytes:
    """More samples than there are, with the sums of every class under another's name: what unit vectors could be."""
    header, meta, body = split(data)
    if "x/counts" not in header:
        return enlarged(data, rng)
    factor, by, corrupted = rng.choice((1, 2, 10)), rng.randrange(3), bytearray(body)
    for name, entry in header.items():
        if name.startswith("x/"):
            first, last = entry["data_offsets"]
            values = [factor * value for value in struct.unpack(f"<{(last - first) // 4}f", body[first:last])]
            if name == "x/counts" or name.endswith(".sums"):
                row = by * len(values) // entry["shape"][0]
                values = values[row:] + values[:row]
            corrupted[first:last] = struct.pack(f"<{len(values)}f", *values)
    return joined(header, {**meta, "samples": factor * meta["samples"]}, bytes(corrupted))


def noise_in_tensors(data: bytes, rng: random.Random) -> bytes:
    """Any bits at all in place of some tensors: codes, masks, seeds and floats alike."""
    header, meta, body = split(data)
    if not body:
        return header_changed(data, rng)
    first = rng.randrange(len(body))
    last = min(len(body), first + rng.choice((1, 8, 64, len(body))))
    return joined(header, meta, body[:first] + rng.randbytes(last - first) + body[last:])


def bombs(data: bytes, rng: random.Random) -> bytes:
    """Few bytes that would become many."""
    header, meta, body = split(data)
    kind = rng.randrange(6)
    if kind == 0:
        return joined(header, "[" * 200_000, body)
    if kind == 1:
        return joined(header, "[" + "[]," * 300_000 + "[]]", body)
    if kind == 2:
        return joined(header, {**meta, "report": {f"f{i}": i for i in range(20_000)}}, body)
    if kind == 3:
        wide = ["ff" * 100_000, "ff" * 100_000]
        return joined(header, {**meta, "spec": {**meta["spec"], "window": [wide] * 3}}, body)
    if kind == 4:
        more = {f"x/{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(20_000)}
        return joined({**header, **more}, meta, body)
    return joined(header, {**meta, "spec": {**meta["spec"], "exits": list(range(200_000))}}, body)


MUTATIONS: tuple[Mutation, ...] = (
    bytes_changed, cut_or_grown, length_changed, meta_changed, header_changed, tensor_retyped, values_changed,
    noise_in_tensors, enlarged, statistics_moved, bombs,
)  # fmt: skip
WEIGHTS = (20, 5, 3, 25, 15, 10, 15, 10, 15, 5, 2)


def mutate(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    """One mutation, seldom two; and its name."""
    (first,) = rng.choices(MUTATIONS, WEIGHTS)
    corrupted, name = first(data, rng), first.__name__
    if rng.random() < 0.1:
        corrupted, name = bytes_changed(corrupted, rng) if corrupted else corrupted, f"{name}, bytes_changed"
    return name, corrupted
