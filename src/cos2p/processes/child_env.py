"""The allocator of a process whose memory is promised. Apart from everything else, so that it needs no torch."""

from __future__ import annotations

CHILD_ENV = {
    "MALLOC_ARENA_MAX": "1",
    # Every tensor of 64 KiB or more is a mapping of its own, which goes back to the system when it is freed. Left to
    # itself the allocator raises this limit step by step, keeps freed tensors, and takes up to a tenth more.
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "131072",
    "MALLOC_TOP_PAD_": "65536",
}
"""Environment of every process whose memory is promised: the one that measures, and the one a device trains in."""
