"""A device with a valid certificate that sends what no honest one would: loaded into its job process.

What it does stands in the file `lies` of its kit: `malformed` for ever, or `mixed`: each kind of a malformed update
once, an answer that is none, and from then on its own update with the sign turned round.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

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

_send, _do = FleetExecutor._send, FleetExecutor._do


def _next_lie(folder: Path) -> int:
    """The number of the malformed update that is due; beyond them: the sign is turned round."""
    count = folder / "lies.count"
    reported = int(count.read_text()) if count.exists() else 0
    count.write_text(str(reported + 1))
    return reported % len(MALFORMED) if (folder / "lies").read_text() == "malformed" else reported


def send(self: FleetExecutor, task: str, path: Path) -> Notice:
    number = _next_lie(Path(self._folder))
    lie = MALFORMED[number] if number < len(MALFORMED) else turned
    path.write_bytes(lie(path.read_bytes()))
    return _send(self, task, path)


def do(self: FleetExecutor, order: dict[str, Any]) -> dict[str, Any]:
    honest, count = _do(self, order), Path(self._folder) / "lies.count"
    last = (Path(self._folder) / "lies").read_text() == "mixed" and count.read_text() == str(len(MALFORMED) + 1)
    return {"sent": ["an update"], "numbers": "many"} if last else honest


FleetExecutor._send, FleetExecutor._do = send, do  # type: ignore[method-assign]
