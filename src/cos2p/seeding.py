"""Randomness has a name: every generator is derived from (seed, purpose, client, cycle, ...).

Nothing in the package draws from a global generator, so the order in which tasks happen to run, and the
number of worker processes, cannot change a result; and a resumed run needs no generator state.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose. `derive_seed(0, "mask", "pi-1", 3)` is the same on every machine."""
    text = "\x1f".join([str(seed), *(f"{type(p).__name__}:{p}" for p in purpose)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def torch_rng(seed: int, *purpose: str | int) -> torch.Generator:
    generator = torch.Generator()
    generator.manual_seed(derive_seed(seed, *purpose))
    return generator


def numpy_rng(seed: int, *purpose: str | int) -> np.random.Generator:
    return np.random.default_rng(derive_seed(seed, *purpose))
