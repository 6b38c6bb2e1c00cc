"""A device with a valid certificate that sends what no honest one would: loaded into its job process.

What it does stands in the file `lies` of its kit: `malformed` for ever, or `mixed`: each kind of a malformed update
once, then its own update with the sign turned round.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cos2p.fleet.nvflare.executor import FleetExecutor
from cos2p.fleet.spool import Notice
from tests.fuzz.mutations import joined, split


def huge_shape(data: bytes) -> bytes:
    """A tensor that no memory holds, in no byte."""
    header, meta, body = split(data)
    name = next(name for name in header if name.startswith("d/"))
    header[name]["shape"] = [2**50, 2**50, 0]
    return joined(header, meta, body)


def long_number(data: bytes) -> bytes:
    header, meta, body = split(data)
    return joined(header, {**meta, "samples": 10**5000 - 1}, body)


def turned(data: bytes) -> bytes:
    """A plausible update that undoes what the others learn."""
    header, meta, body = split(data)
    return joined(header, meta, (-np.frombuffer(body, "<f4")).tobytes())


MALFORMED = (huge_shape, long_number)

_honest = FleetExecutor._send


def _send(self: FleetExecutor, task: str, path: Path) -> Notice:
    lies, count = Path(self._folder) / "lies", Path(self._folder) / "lies.count"
    told = int(count.read_text()) if count.exists() else 0
    count.write_text(str(told + 1))
    if lies.read_text() == "malformed" or told < len(MALFORMED):
        lie = MALFORMED[told % len(MALFORMED)]
    else:
        lie = turned
    path.write_bytes(lie(path.read_bytes()))
    return _honest(self, task, path)


FleetExecutor._send = _send  # type: ignore[method-assign]
