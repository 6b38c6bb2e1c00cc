"""What all comparisons share: the stored numbers, the inputs they came from, and how close is close."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FIXTURES = Path(__file__).parent / "fixtures"

TOLERANCE = 1e-6
"""Largest allowed difference, in units of the largest official number: a few roundings of float32."""


def fixture(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


def wave(shape: Sequence[int], phase: float) -> Tensor:
    """sin(phase + 0.7·i) of the flat index i, in float32: what the fixtures call wave."""
    index = torch.arange(math.prod(shape), dtype=torch.float64)
    return torch.sin(phase + 0.7 * index).float().view(*shape)


def agree(what: str, ours: Tensor, official: Sequence[float] | Tensor, tolerance: float = TOLERANCE) -> None:
    """Compare entry by entry; prints the largest difference in units of the largest official number."""
    expected = torch.as_tensor(official, dtype=torch.float64).flatten()
    found = ours.detach().double().flatten()
    assert found.shape == expected.shape, what
    difference = float((found - expected).abs().max() / expected.abs().max())
    print(f"{what}: {difference:.1e}")
    assert difference <= tolerance, f"{what}: {difference:.1e} is more than {tolerance:.0e}"
