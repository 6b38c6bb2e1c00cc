"""Memory that was given back stays with the process.

A page that comes fresh from the system is zeroed and mapped first, which takes many times as long as the arithmetic on
it. A server frees as much with every version as it needs for the next.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Of glibc's mallopt(3)."""
_LARGEST = 32 * 2**20
"""Bytes of one piece that can come from what was freed; glibc allows no more."""


def keep_freed_pages(most: int = 2**29) -> bool:
    """Of what this process frees, keep up to `most` bytes for the next time. False where the system's library has no
    such setting."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST) and mallopt(_M_TRIM_THRESHOLD, most))
