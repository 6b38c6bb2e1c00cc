"""Counting scalars and bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping

FLOAT = 4
"""Bytes of a scalar."""


def scalars(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Scalars of tensors of these shapes, all together."""
    return sum(map(math.prod, shapes.values()))
