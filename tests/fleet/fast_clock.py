"""A device whose clock is an hour ahead: loaded into its job process."""

from __future__ import annotations

import time

AHEAD = 3600.0

_right = time.time


def _wrong() -> float:
    return _right() + AHEAD


time.time = _wrong
